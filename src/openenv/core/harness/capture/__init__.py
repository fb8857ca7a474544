"""Of the recording of an agent's model calls there is only what trainers import: the module `upstream`."""

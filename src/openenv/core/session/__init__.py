"""Rules of sessions, as state machines without input or output."""

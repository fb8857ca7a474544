"""Adapters between environments and the libraries that train on them. Each needs an extra of the same name."""

"""Session-safe client and server SDK for reinforcement-learning environments behind a network."""

"""Grades a training server: a rollout client that plays by the rules, and one that breaks them."""

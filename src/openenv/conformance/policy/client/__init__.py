"""Grades a rollout client: a training server that plays by the rules, and ends connections in every way there is."""

"""The policy link: rollout clients ask a training server for action chunks."""

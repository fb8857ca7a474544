"""The checker that grades clients: it is the server. `openenv.conformance.client.run` is its front door."""

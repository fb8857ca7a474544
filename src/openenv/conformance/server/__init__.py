"""The checker that grades servers: it is the client. `openenv.conformance.server.run` is its front door."""

"""The server side: environments, sessions and the routes that reach them."""

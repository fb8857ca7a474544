"""Messages to bytes and back. Pure: no sockets, no clock, no sessions."""

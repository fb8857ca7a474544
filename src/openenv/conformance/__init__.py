"""Grades any server or client of the env link, clause by clause. Shares no code with this package's own ends.

`openenv.conformance.clauses` is the list of clauses; `openenv.conformance.server` plays a client that grades a
server, `openenv.conformance.client` a server that grades a client.
"""

"""Grades both ends of the policy link, clause by clause. Shares no code with `openenv.policy`.

`openenv.conformance.policy.client` is a training server that grades rollout clients,
`openenv.conformance.policy.server` a rollout client that grades training servers; both stand on a codec of their own.
"""

try:
    import msgpack  # type: ignore[import-untyped]  # noqa: F401
    import numpy  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"grading the policy link needs {error.name}: pip install 'openenv[policy]'", name=error.name
    ) from None

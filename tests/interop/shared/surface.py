"""Prints the public surface of whichever openenv its interpreter has, as JSON: names, parameters, fields, members."""

from __future__ import annotations

import enum
import importlib
import inspect
import json
import sys
import warnings
from typing import Any

warnings.simplefilter("ignore")

MODULES = [
    "openenv.core.client_types",
    "openenv.core.env_client",
    "openenv.core.sync_client",
    "openenv.core.generic_client",
    "openenv.core.env_server",
    "openenv.core.env_server.types",
    "openenv.core.env_server.interfaces",
    "openenv.core.env_server.base_transforms",
    "openenv.core.env_server.mcp_types",
    "openenv.core.env_server.http_server",
    "openenv.core.env_server.serialization",
    "openenv.core.env_server.exceptions",
    "openenv.core.env_server.route_config",
    "openenv.core.containers.runtime",
    "openenv.core.containers.runtime.providers",
    "openenv.core.containers.runtime.uv_provider",
    "openenv.core.harness.rollout",
    "openenv.core.llm_client",
    "openenv.core.rubrics",
    "openenv.core.rubrics.base",
    "openenv.core.rubrics.containers",
    "openenv.core.rubrics.llm_judge",
    "openenv.core.rubrics.trajectory",
    "openenv.core.tools.git_server_client",
    "openenv.core.utils",
    "openenv.core",
    "openenv",
]


def parameters(function: Any) -> list[list[Any]] | None:
    """Name, kind and default of each parameter, without self."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    found = []
    for parameter in signature.parameters.values():
        default = parameter.default
        if default is not parameter.empty and not isinstance(default, str | int | float | bool | type(None)):
            default = getattr(default, "__name__", type(default).__name__)
        found.append([parameter.name, parameter.kind.name, "" if default is parameter.empty else repr(default)])
    return [one for one in found if one[0] not in ("self", "cls")]


def model(cls: Any) -> dict[str, Any]:
    fields = {}
    for name, field in cls.model_fields.items():
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        fields[name] = [field.is_required(), repr(getattr(default, "value", default))]
    config = cls.model_config
    return {
        "fields": fields,
        "extra": config.get("extra") or "ignore",
        "validate_assignment": bool(config.get("validate_assignment")),
    }


def methods(cls: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in inspect.getmembers_static(cls):
        if (name.startswith("_") and name not in ("__init__", "__call__")) or (
            name == "__init__" and "__init__" not in vars(cls)
        ):
            continue
        if isinstance(value, property):
            found[name] = "property"
        elif isinstance(value, staticmethod | classmethod):
            found[name] = parameters(value.__func__)
        elif inspect.isfunction(value):
            found[name] = parameters(value)
    return found


def described(value: Any) -> dict[str, Any]:
    if inspect.isclass(value) and issubclass(value, enum.Enum):
        return {"kind": "enum", "members": {one.name: one.value for one in value}}
    if inspect.isclass(value) and hasattr(value, "model_fields"):
        return {"kind": "model", **model(value)}
    if inspect.isclass(value):
        return {
            "kind": "class",
            "methods": methods(value),
            "abstract": sorted(getattr(value, "__abstractmethods__", [])),
        }
    if callable(value):
        return {"kind": "function", "parameters": parameters(value)}
    return {"kind": type(value).__name__}


def public(module: Any) -> list[str]:
    listed = getattr(module, "__all__", None)
    if listed is not None and module.__name__ in ("openenv", "openenv.core", "openenv.core.env_server"):
        return sorted(listed)
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    return sorted(name for name in {*own, *(listed or ())} if not name.startswith("_"))


def main() -> None:
    surface: dict[str, Any] = {}
    for path in MODULES:
        module = importlib.import_module(path)
        surface[path] = {}
        for name in public(module):
            try:
                value = getattr(module, name)
            except (AttributeError, ImportError) as error:
                surface[path][name] = {"kind": "missing", "error": str(error)}
                continue
            surface[path][name] = described(value)
    json.dump(surface, sys.stdout)


main()

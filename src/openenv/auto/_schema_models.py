"""Models from what a server tells at ``/schema``, and the generic client that has them.

A model here checks what can be checked; a schema that says more than this module understands gives a field of any type,
never an error.
"""

from __future__ import annotations

import keyword
import logging
import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, create_model

from openenv.core.client_types import StepResult
from openenv.core.generic_client import GenericEnvClient
from openenv.core.hooks import parse_model, parse_result

__all__ = ["SchemaEnvClient", "SchemaModel", "client_with_models", "model_from_schema"]

logger = logging.getLogger("openenv.client")

_SIMPLE: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "null": None,
    "array": list[Any],
    "object": dict[str, Any],
}
_NUMBERS = {"minimum": "ge", "maximum": "le", "exclusiveMinimum": "gt", "exclusiveMaximum": "lt"}
_LIMITS: dict[str, dict[str, str]] = {
    "integer": _NUMBERS,
    "number": _NUMBERS,
    "string": {"minLength": "min_length", "maxLength": "max_length"},
    "array": {"minItems": "min_length", "maxItems": "max_length"},
}
"""What a limit is called in pydantic; a word for another type says nothing."""
MAX_PARTS = 10_000
"""Most fields, items and members of unions that are built of one schema; what comes after is of any type."""
MAX_DEPTH = 50
"""Deepest nesting; what is below is of any type."""
MAX_CHOICES = 100
"""Most members of one union, which takes the square of their number to build."""
_LARGEST_LENGTH = 2**31
_LONGEST_TITLE = 200


class SchemaModel(BaseModel):
    """A model made from a schema. Its fields are attributes, and keys as well, as in the dicts of a generic client."""

    model_config = ConfigDict(extra="allow", populate_by_name=True, protected_namespaces=())

    def __getitem__(self, key: str) -> Any:
        values = self._by_key()
        return values[key]

    def __contains__(self, key: object) -> bool:
        return key in self._by_key()

    def keys(self) -> Iterator[str]:
        """Names of the fields, as on the wire."""
        return iter(self._by_key())

    def get(self, key: str, default: Any = None) -> Any:
        """A field by its name on the wire."""
        return self._by_key().get(key, default)

    def _by_key(self) -> dict[str, Any]:
        fields = type(self).model_fields
        own = {name if field.alias is None else field.alias: getattr(self, name) for name, field in fields.items()}
        return {**own, **(self.model_extra or {})}


class SchemaEnvClient(GenericEnvClient):
    """A `GenericEnvClient` whose models were made from the server's schema.

    Attributes:
        action_model: the model of an action; actions may still be dicts.
        observation_model: the model of its observations.
        state_model: the model of its state.
    """

    action_model: type[SchemaModel] = SchemaModel
    observation_model: type[SchemaModel] = SchemaModel
    state_model: type[SchemaModel] = SchemaModel

    def _step_payload(self, action: Any) -> dict[str, Any]:
        if isinstance(action, SchemaModel):  # what nobody has set is for the server to fill in
            return action.model_dump(by_alias=True, exclude_unset=True)
        return super()._step_payload(action)

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[Any]:
        return parse_result(self.observation_model, payload)

    def _parse_state(self, payload: dict[str, Any]) -> Any:
        return parse_model(self.state_model, payload)


def client_with_models(schema: Mapping[str, Any]) -> type[SchemaEnvClient]:
    """A class of clients with the models of a server.

    Args:
        schema: its answer at ``/schema``.
    """
    observation = _schema_of(schema, "observation")
    first = _schema_of(schema, "reset_observation")
    model = model_from_schema(observation, "Observation")
    if first and first != observation:
        model = SchemaModel  # one of the two: which, only the environment knows
    members = {
        "__module__": __name__,
        "action_model": model_from_schema(_schema_of(schema, "action"), "Action"),
        "observation_model": model,
        "state_model": model_from_schema(_schema_of(schema, "state"), "State"),
    }
    return cast("type[SchemaEnvClient]", type("SchemaEnvClient", (SchemaEnvClient,), members))


def _schema_of(schema: Mapping[str, Any], kind: str) -> dict[str, Any]:
    found = schema.get(kind)
    return found if isinstance(found, dict) else {}


def model_from_schema(schema: Mapping[str, Any], name: str) -> type[SchemaModel]:
    """A model from the JSON Schema of an object.

    Args:
        schema: the schema; references into its ``$defs`` are followed.
        name: the model's name, where the schema has no title.
    """
    try:
        return _Builder(schema).model(schema, name)
    except Exception as error:  # pydantic's errors have no base, and a server's schema may hold anything
        logger.warning("The server's schema gives no model of %s: %s", name, type(error).__name__)
        return SchemaModel


class _Builder:
    """Builds the models of one schema."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._defs = {**_mapping(root.get("definitions")), **_mapping(root.get("$defs"))}
        self._made: dict[str, Any] = {}
        self._parts = self._depth = 0

    def model(self, schema: Mapping[str, Any], name: str) -> type[SchemaModel]:
        required = _texts(schema.get("required"))
        properties = _mapping(schema.get("properties"))
        taken = set(properties)
        fields: dict[str, Any] = {}
        for key, of in properties.items():
            spec = _mapping(of)
            kind = self.annotation(spec, f"{name}_{key}")
            attribute = _attribute(key, taken)
            taken.add(attribute)
            options: dict[str, Any] = {"description": spec.get("description")}
            if attribute != key:
                options["alias"] = key
            options.update(_limits(spec))
            if "default" in spec:
                options["default"] = spec["default"]
            elif key not in required:
                kind, options["default"] = self._union([kind, None]), None
            fields[attribute] = (kind, Field(**options))
        forbid = schema.get("additionalProperties") is False
        base = _Strict if forbid else SchemaModel
        made: type[SchemaModel] = create_model(_title(schema.get("title"), name), __base__=base, **fields)
        return made

    def annotation(self, schema: Mapping[str, Any], name: str) -> Any:
        self._parts += 1
        if self._parts > MAX_PARTS or self._depth >= MAX_DEPTH:
            return Any
        self._depth += 1
        try:
            return self._annotation(schema, name)
        finally:
            self._depth -= 1

    def _annotation(self, schema: Mapping[str, Any], name: str) -> Any:
        if "$ref" in schema:
            return self._referred(str(schema["$ref"]))
        if "const" in schema:
            return _literal([schema["const"]])
        if isinstance(schema.get("enum"), list) and schema["enum"]:
            return _literal(schema["enum"])
        for word in ("anyOf", "oneOf"):
            if isinstance(schema.get(word), list):
                if len(schema[word]) > MAX_CHOICES:
                    return Any
                return self._union(
                    [self.annotation(_mapping(one), f"{name}_{i}") for i, one in enumerate(schema[word])]
                )
        kind = schema.get("type")
        if isinstance(kind, list):
            if len(kind) > MAX_CHOICES:
                return Any
            return self._union([self.annotation({**schema, "type": one}, name) for one in kind])
        if kind == "array" and isinstance(schema.get("items"), dict):
            item: Any = self.annotation(schema["items"], f"{name}_item")
            return list[item]
        if kind == "object" and schema.get("properties"):
            return self.model(schema, name)
        if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
            value: Any = self.annotation(schema["additionalProperties"], f"{name}_value")
            return dict[str, value]
        return _SIMPLE.get(kind, Any) if isinstance(kind, str) else Any

    def _union(self, types: list[Any]) -> Any:
        if not types or any(one is Any for one in types):
            return Any
        union = types[0]
        for one in types[1:]:
            union = union | one if union is not None or one is not None else None
        return union

    def _referred(self, reference: str) -> Any:
        key = reference.rpartition("/")[2]
        if key not in self._defs:
            return Any
        if key not in self._made:
            self._made[key] = Any  # a schema that refers to itself ends here
            self._made[key] = self.annotation(_mapping(self._defs[key]), key)
        return self._made[key]


def _title(told: Any, name: str) -> str:
    for title in (told, name):
        if isinstance(title, str) and title.isprintable() and 0 < len(title) <= _LONGEST_TITLE:
            return title
    return "Model"


def _texts(value: Any) -> set[str]:
    return {one for one in value if isinstance(one, str)} if isinstance(value, list) else set()


class _Strict(SchemaModel):
    model_config = ConfigDict(extra="forbid")


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _literal(values: list[Any]) -> Any:
    if all(isinstance(value, str | int | bool | None) for value in values):
        return Literal[tuple(values)]
    return Any


def _limits(schema: Mapping[str, Any]) -> dict[str, Any]:
    kind = schema.get("type")
    names = _LIMITS.get(kind, {}) if isinstance(kind, str) else {}
    told = {ours: schema[name] for name, ours in names.items() if name in schema}
    return {ours: limit for ours, limit in told.items() if _is_limit(kind, limit)}


def _is_limit(kind: Any, limit: Any) -> bool:
    if kind in ("string", "array"):
        return type(limit) is int and 0 <= limit < _LARGEST_LENGTH
    return type(limit) is int or (kind == "number" and type(limit) is float and math.isfinite(limit))


def _attribute(key: str, taken: Collection[str]) -> str:
    """A name that a field can have; the wire's own is then its alias."""
    if key.isidentifier() and not (key.startswith("_") or keyword.iskeyword(key) or hasattr(SchemaModel, key)):
        return key
    name = "".join(character if character.isidentifier() or character.isdecimal() else "_" for character in key)
    name = name.lstrip("_") or "field"
    if name[0].isdecimal():
        name = f"field_{name}"
    if keyword.iskeyword(name) or hasattr(SchemaModel, name):
        name += "_"
    while name in taken:
        name += "_"
    return name

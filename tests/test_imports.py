"""What imports from where, what does not exist yet, and what an import costs."""

from __future__ import annotations

import ast
import json
import pickle
import pkgutil
import subprocess
import sys
import warnings
from importlib import import_module, reload
from pathlib import Path
from types import ModuleType

import pytest

SRC = Path(__file__).parents[1] / "src"
LAZY_PACKAGES = [
    "openenv",
    "openenv.auto",
    "openenv.core",
    "openenv.core.containers.runtime",
    "openenv.core.env_server",
    "openenv.core.harness",
    "openenv.core.rubrics",
    "openenv.core.tools",
    "openenv.policy",
]
HEAVY = {"fastapi", "starlette", "uvicorn", "mcp", "fastmcp", "numpy", "msgpack", "gradio"}

# Where env packages, examples and tests of the OpenEnv world import these names from.
PATHS = {
    "openenv": "AutoAction AutoEnv GenericEnvClient GenericAction SyncEnvClient core cli __version__",
    "openenv.auto": "AutoAction AutoEnv",
    "openenv.auto._discovery": "EnvironmentDiscovery EnvironmentInfo get_discovery reset_discovery _is_hub_url "
    "_normalize_env_name _create_env_info_from_package _infer_class_name",
    "openenv.auto.auto_action": "AutoAction",
    "openenv.auto.auto_env": "AutoEnv _confirm_remote_install _get_pip_command _has_uv",
    "openenv.core": "EnvClient MCPEnvironment",
    "openenv.core.client_types": "StepResult",
    "openenv.core.env_client": "EnvClient StepResult",
    "openenv.core.generic_client": "GenericAction GenericEnvClient",
    "openenv.core.sync_client": "SyncEnvClient",
    "openenv.core.env_server": "create_app create_fastapi_app Action Environment MCPEnvironment Observation State "
    "HTTPEnvServer",
    "openenv.core.env_server.base_transforms": "CompositeTransform NullTransform",
    "openenv.core.env_server.exceptions": "OpenEnvError ConcurrencyConfigurationError SessionCapacityError "
    "SessionNotFoundError SessionCreationError EnvironmentFactoryError",
    "openenv.core.env_server.http_server": "create_app create_fastapi_app HTTPEnvServer",
    "openenv.core.env_server.interfaces": "Action Environment Message ModelTokenizer Observation State TaskProvider "
    "Transform",
    "openenv.core.env_server.mcp_environment": "MCPEnvironment MCP_TOOL_CALL_TIMEOUT get_server_tools",
    "openenv.core.env_server.mcp_types": "CallToolAction CallToolObservation JsonRpcError JsonRpcErrorCode "
    "JsonRpcRequest JsonRpcResponse ListToolsAction ListToolsObservation McpMethod RESERVED_TOOL_NAMES Tool ToolError "
    "ToolErrorType WSMCPMessage WSMCPResponse",
    "openenv.core.env_server.route_config": "GetEndpointConfig",
    "openenv.core.env_server.serialization": "deserialize_action deserialize_action_with_preprocessing "
    "serialize_observation",
    "openenv.core.env_server.types": "Action BaseMessage CodeExecResult ConcurrencyConfig EnvironmentMetadata "
    "GetTaskRangeRequest GetTaskRequest HealthResponse HealthStatus ListTasksRequest NumTasksRequest Observation "
    "ResetRequest ResetResponse SchemaResponse ServerCapacityStatus ServerMode SessionInfo State StepRequest "
    "StepResponse WSCloseMessage WSErrorCode WSErrorResponse WSIncomingMessage WSObservationResponse WSResetMessage "
    "WSStateMessage WSStateResponse WSStepMessage",
    "openenv.core.containers.runtime": "ContainerProvider DockerSwarmProvider KubernetesProvider LocalDockerProvider "
    "RuntimeProvider UVProvider",
    "openenv.core.containers.runtime.providers": "ContainerProvider DockerSwarmProvider KubernetesProvider "
    "LocalDockerProvider RuntimeProvider",
    "openenv.core.containers.runtime.uv_provider": "UVProvider",
    "openenv.core.env_server.web_interface": "WebInterfaceManager create_web_interface_app load_environment_metadata",
    "openenv.core.tools": "GitServerClient PyExecutor RepoInfo",
    "openenv.core.tools.git_server_client": "GitServerClient",
    "openenv.core.utils": "convert_to_ws_url hf_space_subdomain run_async_safely",
    "openenv.core.harness": "CLIHarnessAdapter HarnessAdapter HarnessRolloutResult HarnessRunLimits MCPHarnessAdapter "
    "Message ModelStepResult ResourceSession ResourceSessionFactory RolloutEvent SessionMCPBridge ToolResult "
    "StepEnvSessionAdapter ToolTraceEntry VerifyResult build_harness_rollout_func _resolve_env_reward",
    "openenv.core.harness.rollout": "MCPHarnessAdapter ResourceSession ToolResult _resolve_env_reward",
    "openenv.core.llm_client": "AnthropicClient LLMClient LLMResponse OpenAIClient ToolCall create_llm_client "
    "_clean_mcp_schema _mcp_tools_to_anthropic _mcp_tools_to_openai _openai_msgs_to_anthropic",
    "openenv.core.rubrics": "ExponentialDiscountingTrajectoryRubric Gate LLMJudge Rubric RubricDict RubricList "
    "Sequential TrajectoryRubric WeightedSum",
    "openenv.core.rubrics.base": "Rubric",
    "openenv.core.rubrics.trajectory": "ExponentialDiscountingTrajectoryRubric",
    "openenv_core": "EnvClient Action create_app",
    "openenv_core.client_types": "StepResult",
    "openenv_core.env_client": "EnvClient",
    "openenv_core.env_server": "Action Environment Observation State create_app",
    "openenv_core.env_server.http_server": "create_app",
    "openenv_core.env_server.interfaces": "Environment",
    "openenv_core.env_server.types": "Action Observation State",
}

NEEDS_EXTRA = {"MCPEnvironment"}  # and is therefore in no `import *`

# The names of openenv.core that upstream has too and that work here.
CORE_NAMES = """
    Action BaseMessage CallToolAction CallToolObservation CompositeTransform ConcurrencyConfig
    ConcurrencyConfigurationError EnvClient Environment EnvironmentFactoryError GenericAction GenericEnvClient
    GetEndpointConfig GetTaskRangeRequest GetTaskRequest HTTPEnvServer HealthResponse HealthStatus JsonRpcError
    JsonRpcErrorCode JsonRpcRequest JsonRpcResponse ListTasksRequest ListToolsAction ListToolsObservation McpMethod
    Message ModelTokenizer NullTransform NumTasksRequest Observation OpenEnvError RESERVED_TOOL_NAMES SchemaResponse
    ServerCapacityStatus ServerMode SessionCapacityError SessionCreationError SessionInfo SessionNotFoundError State
    SyncEnvClient TaskProvider Tool ToolError ToolErrorType Transform WSCloseMessage WSErrorCode WSErrorResponse
    WSIncomingMessage WSMCPMessage WSMCPResponse WSObservationResponse WSResetMessage WSStateMessage WSStateResponse
    WSStepMessage create_app create_fastapi_app deserialize_action deserialize_action_with_preprocessing
    serialize_observation AnthropicClient LLMClient LLMResponse OpenAIClient ToolCall create_llm_client
    WebInterfaceManager create_web_interface_app
"""
CLIENT_NAMES = {
    *("AnthropicClient", "EnvClient", "GenericAction", "GenericEnvClient", "LLMClient", "LLMResponse", "OpenAIClient"),
    *("SyncEnvClient", "ToolCall", "create_llm_client"),
}

NOT_YET: dict[str, str] = {}
NOT_YET_MODULES = [
    "openenv.core.evals",
    "openenv.core.harness.collect",
]


def pairs(table: dict[str, str]) -> list[tuple[str, str]]:
    return [(module, name) for module, names in table.items() for name in names.split()]


def load(name: str) -> ModuleType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the first import of openenv_core says that it is old
        return import_module(name)


def run(code: str, *options: str) -> str:
    done = subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def modules_after(statement: str) -> set[str]:
    return set(json.loads(run(f"{statement}\nimport json, sys\nprint(json.dumps(list(sys.modules)))")))


# ------------------------------------------------------------------- the names


@pytest.mark.parametrize(("module", "name"), pairs(PATHS))
def test_name_imports_from_where_env_packages_expect_it(module: str, name: str) -> None:
    assert hasattr(load(module), name)


@pytest.mark.parametrize("name", CORE_NAMES.split())
def test_core_and_env_server_export_the_same_objects(name: str) -> None:
    value = getattr(load("openenv.core"), name)
    if name in CLIENT_NAMES:
        assert not hasattr(load("openenv.core.env_server"), name)
    else:
        assert getattr(load("openenv.core.env_server"), name) is value


@pytest.mark.parametrize(("module", "name"), pairs(NOT_YET))
def test_names_of_later_work_do_not_exist(module: str, name: str) -> None:
    with pytest.raises(AttributeError, match=name):
        getattr(load(module), name)
    with pytest.raises(ImportError):
        exec(f"from {module} import {name}")


@pytest.mark.parametrize("name", NOT_YET_MODULES)
def test_modules_of_later_work_do_not_exist(name: str) -> None:
    with pytest.raises(ModuleNotFoundError):
        load(name)


@pytest.mark.parametrize("package", ["openenv", "openenv.core"])
def test_every_error_is_exported(package: str) -> None:
    errors = load("openenv.core.exceptions")
    for name in errors.__all__:
        assert getattr(load(package), name) is getattr(errors, name)


def test_version_of_a_tree_that_was_never_installed() -> None:
    script = """
import importlib.metadata
def missing(name):
    raise importlib.metadata.PackageNotFoundError(name)
importlib.metadata.version = missing
import openenv
print(openenv.__version__)
"""
    assert run(script) == "0.0.0\n"


# ------------------------------------------- one list for people, types and the interpreter


def static_imports(package: str) -> dict[str, str]:
    """The names that a type checker sees, with the module each comes from."""
    tree = ast.parse((SRC / package.replace(".", "/") / "__init__.py").read_text())
    (block,) = (n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING")
    return {alias.name: str(n.module) for n in block.body if isinstance(n, ast.ImportFrom) for alias in n.names}


@pytest.mark.parametrize("package", LAZY_PACKAGES)
def test_all_lists_agree(package: str) -> None:
    static = static_imports(package)
    module = load(package)
    assert set(module.__all__) == set(static) - NEEDS_EXTRA
    assert len(module.__all__) == len(set(module.__all__))
    assert set(static) <= set(dir(module))
    for name, home in static.items():
        source = load(home)
        expected = load(f"{home}.{name}") if name in ("cli", "core") else getattr(source, name)
        assert getattr(module, name) is expected, name


@pytest.mark.parametrize("package", LAZY_PACKAGES)
def test_star_import_works(package: str) -> None:
    space: dict[str, object] = {}
    exec(f"from {package} import *", space)
    assert set(load(package).__all__) <= set(space)


def test_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match=r"'openenv\.core' has no attribute 'nope'"):
        load("openenv.core").nope


# ----------------------------------------------------------------- openenv_core


def submodules(package: str) -> list[str]:
    module = load(package)
    return [info.name for info in pkgutil.walk_packages(module.__path__, f"{package}.")]


def test_alias_is_the_same_module_at_every_depth() -> None:
    names = submodules("openenv.core")
    assert "openenv.core.env_server.types" in names
    for name in names:
        alias = name.replace("openenv.core", "openenv_core", 1)
        assert load(alias) is load(name)
        assert sys.modules[alias] is sys.modules[name]
        assert load(name).__name__ == name
        assert load(name).__spec__.name == name  # type: ignore[union-attr]


def test_alias_can_be_walked() -> None:
    assert [n.replace("openenv_core", "openenv.core", 1) for n in submodules("openenv_core")] == submodules(
        "openenv.core"
    )


def test_alias_first_gives_the_same_classes() -> None:
    print_same = """
import warnings; warnings.simplefilter("ignore")
import openenv_core.env_server.http_server
from openenv_core.env_server.types import Action
from openenv_core import EnvClient, env_server
import openenv.core.env_server.types, openenv.core.env_client, openenv.core.env_server.http_server
assert Action is openenv.core.env_server.types.Action
assert EnvClient is openenv.core.env_client.EnvClient
assert env_server is openenv.core.env_server
assert openenv_core.env_server.http_server is openenv.core.env_server.http_server
print("same")
"""
    assert run(print_same) == "same\n"


def test_alias_pickles() -> None:
    result = load("openenv_core.client_types").StepResult({"x": 1}, 0.5)
    assert pickle.loads(pickle.dumps(result)) == result
    old = b"copenenv_core.client_types\nStepResult\n."  # as a pickle written under the old name has it
    assert pickle.loads(old) is load("openenv.core.client_types").StepResult


def test_alias_survives_reload() -> None:
    script = """
import warnings; warnings.simplefilter("ignore")
import importlib, sys, openenv_core
from openenv_core import client_types
finders = len(sys.meta_path)
again = importlib.reload(client_types)
importlib.reload(openenv_core)
assert len(sys.meta_path) == finders
assert again is client_types is sys.modules["openenv.core.client_types"] is sys.modules["openenv_core.client_types"]
print("ok")
"""
    assert run(script) == "ok\n"


def test_reload_of_lazy_package_keeps_its_names() -> None:
    core = load("openenv.core")
    before = core.StepResult
    assert reload(core).StepResult is before


def test_alias_imports_from_many_threads() -> None:
    script = """
import importlib, sys, threading, warnings
warnings.simplefilter("ignore")
sys.setswitchinterval(1e-6)
names = ["env_server.types", "env_server.mcp_types", "client_types", "exceptions", "env_server.interfaces"]
seen, start = [], threading.Barrier(16)
def work(n):
    top = "openenv_core" if n % 2 else "openenv.core"
    start.wait()
    importlib.import_module(top)
    for name in names[n % 5:] + names[:n % 5]:
        seen.append((name, id(importlib.import_module(f"{top}.{name}"))))
threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
[t.start() for t in threads]; [t.join() for t in threads]
assert len(seen) == 80, len(seen)
assert len(set(seen)) == 5, set(seen)
assert all(sys.modules[f"openenv.core.{n}"].__spec__.name == f"openenv.core.{n}" for n in names)
print("ok")
"""
    assert run(script) == "ok\n"


def test_alias_warns_once_and_at_the_importer() -> None:
    script = """
import warnings
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    import openenv_core
    import openenv_core.env_server.types, openenv_core.client_types
print([(w.category.__name__, w.filename) for w in seen])
"""
    assert run(script) == "[('DeprecationWarning', '<string>')]\n"


def test_alias_of_a_missing_module_names_it() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"openenv_core\.nope"):
        load("openenv_core.nope")


# -------------------------------------------------------------- what it costs


def test_client_is_light() -> None:
    ours = modules_after("import openenv.core.env_client")
    base = modules_after("import websockets.asyncio.client, pydantic")
    assert not HEAVY & {name.split(".")[0] for name in ours}
    assert len(ours) <= 1.25 * len(base), sorted(ours - base)


@pytest.mark.parametrize("package", [*LAZY_PACKAGES, "openenv_core"])
def test_package_alone_loads_nothing_of_others(package: str) -> None:
    ours = modules_after(f"import {package}")
    tops = {name.split(".")[0] for name in ours}
    assert not (HEAVY | {"pydantic", "websockets", "httpx", "asyncio"}) & tops
    assert not {name for name in ours if name.startswith("openenv.core.env_server.")}


def test_the_gymnasium_adapters_say_what_they_lack() -> None:
    code = "import sys; sys.modules['gymnasium'] = None; import openenv.gymnasium"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "ImportError: The Gymnasium adapters need Gymnasium: pip install 'openenv[gymnasium]'" in done.stderr


def test_the_gymnasium_adapters_load_no_server_and_have_one_list_of_names() -> None:
    loaded = modules_after("import openenv.gymnasium")
    assert not {"fastapi", "uvicorn", "torch"} & {name.split(".")[0] for name in loaded}
    assert not {name for name in loaded if name.startswith("openenv.core.env_server.")}
    short, long = import_module("openenv.gymnasium"), import_module("openenv.integrations.gymnasium")
    assert short.__all__ == long.__all__
    assert all(getattr(short, name) is getattr(long, name) for name in short.__all__)

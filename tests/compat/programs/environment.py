from counter import CounterAction, CounterEnvironment
from openenv.core.env_server.interfaces import Environment

env = CounterEnvironment()
print(env.reset(seed=1).model_dump(), env.step(CounterAction(by=2)).model_dump(), env.state.model_dump())
print(
    env.SUPPORTS_CONCURRENT_SESSIONS,
    Environment.SUPPORTS_CONCURRENT_SESSIONS,
    Environment.REQUIRES_SINGLE_THREAD_EXECUTOR,
)
env.close()
try:
    Environment()
except TypeError:
    print("abstract")

import asyncio

from counter import CounterAction, CounterEnvironment, CounterObservation, serving
from openenv.core.client_types import StepResult
from openenv.core.env_client import EnvClient
from openenv.core.env_server import State, create_app


class CounterClient(EnvClient[CounterAction, CounterObservation, State]):
    def __init__(self, base_url, **kwargs):
        super().__init__(base_url=base_url, connect_timeout_s=20.0, message_timeout_s=20.0, **kwargs)
        self.sent = 0

    def _step_payload(self, action):
        self.sent += 1
        return {"by": action.by}

    def _parse_result(self, payload):
        observation = CounterObservation(**payload["observation"])
        return StepResult(observation=observation, reward=payload.get("reward"), done=payload.get("done", False))

    def _parse_state(self, payload):
        return State(**payload)


def told(result):
    return result.observation.count, result.reward, result.done


with serving(create_app(CounterEnvironment, CounterAction, CounterObservation, max_concurrent_envs=4)) as url:
    with CounterClient(url).sync() as env:
        print(
            told(env.reset(seed=1, episode_id="e")),
            told(env.step(CounterAction(by=4))),
            env.state().episode_id,
            env.sent,
        )

    async def main():
        async with CounterClient(base_url=url) as env:
            print(told(await env.reset()), told(await env.step(CounterAction())), (await env.state()).step_count)
            print(env._ws_url == url.replace("http", "ws") + "/ws", env._ws is not None, env._connect_timeout)

    asyncio.run(main())
    env = CounterClient(url)
    print(told(env.reset()), told(env.step(CounterAction(by=5))))
    env.close()
try:
    CounterClient(None)
except ValueError:
    print("an address or a provider")

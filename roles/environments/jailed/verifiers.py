"""Problems and scores of an environment package for the verifiers library.

The package is third-party code. It is loaded once, before any model output is read.
"""

import asyncio
import json
import math
import os
import random
import sys
from collections.abc import Callable
from inspect import Parameter, signature
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import verifiers.v1 as vf
from verifiers.v1.state import state_cls

from roles.environments.jailed.installed import package_digest, package_files

PROBLEMS_MAX = 10_000
"""Largest number of problems, the first ones of a package with more or infinitely many; a guess."""

PACKAGES = "/sources/packages"
"""Directory of a package that the interpreter itself does not have."""

CHAT_BYTES_MAX = 48 << 10
"""Largest chat as JSON, below the size limit of a reply."""

_ROLES = ("system", "user", "assistant")


def checker(settings: Any) -> Callable[[Any], Any]:
    """Load a ``package`` with ``arguments``; return a function for questions about its problems.

    A question without ``index`` yields the ``count`` of problems, or why the package is
    ``refused``; with ``index``, the problem's chat as pairs of role and content; with ``answers``
    too, their scores.
    """
    sys.path.append(PACKAGES)
    os.environ["HOME"] = "/tmp"  # noqa: S108 - the jail's own; the library looks for one
    try:
        return _Problems(settings["package"], settings["digest"], settings["arguments"]).check
    except BaseException as error:  # noqa: BLE001 - third-party code, which may also exit
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:500]
        return lambda _: {"refused": reason}


class _Problems:
    def __init__(self, package: str, digest: str, arguments: dict[str, Any]) -> None:
        if (found := package_digest(package)) != digest:
            raise ValueError(f"digest {found} in the jail")
        _seed()
        config = vf.taskset_config_type(package).model_validate({**arguments, "id": package})
        taskset = vf.load_taskset(config)
        self._tasks = list(islice(taskset, PROBLEMS_MAX))
        if not self._tasks:
            raise ValueError("no tasks")
        needs = [*_needs_of_package(package, taskset), *_needs_of_tasks(self._tasks[0])]
        if needs:
            raise ValueError(f"needs {', '.join(needs)}: only one answer per prompt is supported")
        self._chats = [_chat(task.data) for task in self._tasks]

    def check(self, question: Any) -> Any:
        if "index" not in question:
            return {"count": len(self._tasks)}
        task, chat = self._tasks[question["index"]], self._chats[question["index"]]
        if "answers" not in question:
            return chat
        return [_score(task, chat, answer) for answer in question["answers"]]


def _seed() -> None:
    """Seed all random generators, for the same draws on every machine."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - the generator that third-party code uses


def _needs_of_package(package: str, taskset: Any) -> list[str]:
    """Return the unsupported features of a package."""
    module = sys.modules[type(taskset).__module__]
    files = {path.resolve() for path in package_files(package).values()}
    found = {
        "its taskset among its installed files": Path(str(module.__file__)).resolve() not in files,
        "an environment of its own": vf.environment_class(package) is not vf.SingleAgentEnv,
        "a harness of its own": vf.default_harness_id(package) == package,
        "tools": bool(type(taskset).toolsets(taskset.config)),
    }
    return [need for need, is_there in found.items() if is_there]


def _needs_of_tasks(task: Any) -> list[str]:
    """Return the unsupported features of a task's type."""
    kind = type(task)
    scored = [*task.hooks("reward"), *task.hooks("metric")]
    steered = [name for one in kind.__mro__ for name, it in vars(one).items() if _steers(it)]
    hooks = ("setup", "finalize", "stage_verifier")
    found = {
        "a container": kind.NEEDS_CONTAINER,
        "tools": bool(kind.toolsets(task.config)),
        "a judge": bool(task.plugged_judges()),
        "a runtime": any(map(_takes_runtime, scored))
        or any(getattr(kind, hook) is not getattr(vf.Task, hook) for hook in hooks),
        "stops or intercepts of a conversation": bool(steered or task.hooks("stop")),
        "rewards": not task.hooks("reward"),
    }
    return [need for need, is_there in found.items() if is_there]


def _steers(attribute: Any) -> bool:
    return callable(attribute) and (hasattr(attribute, "stop") or hasattr(attribute, "intercept"))


def _takes_runtime(scored: Callable[..., Any]) -> bool:
    runtime = signature(scored).parameters.get("runtime")
    return runtime is not None and runtime.default is Parameter.empty


def _chat(data: Any) -> list[tuple[str, str]]:
    """Return role and content of a prompt's messages, as in the library's plain chat."""
    if data.image or data.skills or data.artifacts:
        raise ValueError(f"problem {data.idx} needs an image, skills or artifacts")
    prompt = [vf.UserMessage(content=data.prompt)] if isinstance(data.prompt, str) else data.prompt
    chat = [] if data.system_prompt is None else [("system", str(data.system_prompt))]
    for message in prompt or ():
        content = message.content
        if message.role not in _ROLES or getattr(message, "tool_calls", None):
            raise ValueError(f"problem {data.idx} has tool messages")
        if isinstance(content, list) and any(part.type != "text" for part in content):
            raise ValueError(f"problem {data.idx} has messages that are not text")
        text = content if isinstance(content, str) else vf.types.content_text(content)
        chat.append((message.role, text))
    if not chat or chat[-1][0] != "user":
        raise ValueError(f"problem {data.idx} does not end with a user message")
    if len(json.dumps(chat)) > CHAT_BYTES_MAX:
        raise ValueError(f"problem {data.idx} has a prompt of more than {CHAT_BYTES_MAX} bytes")
    return chat


_MESSAGES = {"system": vf.SystemMessage, "user": vf.UserMessage, "assistant": vf.AssistantMessage}


def _score(task: Any, chat: list[tuple[str, str]], answer: str) -> float:
    """Return the sum of the package's rewards, from 0 to 1; 0 when one of them raises."""
    _seed()
    try:
        trace = _trace(task, chat, answer)
        asyncio.run(task.score(trace))
        reward = float(trace.reward)
    except BaseException:  # noqa: BLE001 - also SystemExit, which is the same on every machine
        return 0.0
    return 0.0 if math.isnan(reward) else min(1.0, max(0.0, reward))


def _trace(task: Any, chat: list[tuple[str, str]], answer: str) -> Any:
    """Return the library's record of a chat in which the model replied ``answer``."""
    nodes = [
        vf.MessageNode(parent=place - 1 if place else None, message=_MESSAGES[role](content=text))
        for place, (role, text) in enumerate(chat)
    ]
    said = vf.AssistantMessage(content=answer)
    nodes.append(vf.MessageNode(parent=len(nodes) - 1, message=said, sampled=True))
    kind = type(task)
    return vf.Trace(
        verifiers=vf.VersionInfo(version=""),  # else each looks for the library's repository
        task=vf.TraceTask(type=kind.__name__, data=task.data, key=task.key, hash=task.hash),
        agent=vf.AgentInfo(config=vf.AgentConfig(runtime=vf.SubprocessConfig())),
        state=state_cls(kind)(),
        nodes=nodes,
        is_completed=True,
        ok=True,
        stop_condition="agent_completed",
    )

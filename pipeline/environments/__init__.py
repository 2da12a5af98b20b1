"""Agents and environments: a scripted and a real side behind one interface.

What a user needs to write an environment is re-exported here.
"""

from pipeline.environments.environment import BaseTaskEnv, InfraFailure, Step, TaskEnvironment
from pipeline.environments.parsers import CompactParser, QwenParser
from pipeline.environments.registry import resolve
from pipeline.environments.tool_environment import Tool, ToolEnvironment

__all__ = [
    "BaseTaskEnv",
    "CompactParser",
    "InfraFailure",
    "QwenParser",
    "Step",
    "TaskEnvironment",
    "Tool",
    "ToolEnvironment",
    "resolve",
]

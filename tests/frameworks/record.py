"""Writes recorded/: the objects of `objects.py` as JSON from each library's own dump.

Run it in an environment with the extra `frameworks`: python -m tests.frameworks.record
"""

import json
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

from .objects import OBJECTS, dumped

RECORDED = Path(__file__).with_name("recorded")

LIBRARY = {
    "openai_chat": "openai",
    "openai_responses": "openai",
    "openai_agents": "openai-agents",
    "langchain": "langchain-core",
    "langchain_lc": "langchain-core",
    "langchain_to_dict": "langchain-core",
    "langgraph_state": "langchain-core",
    "anthropic": "anthropic",
    "google": "google-genai",
    "google_camel": "google-genai",
    "pydantic_ai": "pydantic-ai-slim",
    "autogen": "autogen-agentchat",
    "autogen_core": "autogen-core",
    "mcp": "mcp",
}


def other_dumps() -> dict[str, Any]:
    """Yield the forms with names of their own."""
    from langchain_core.load import dumpd
    from langchain_core.messages import messages_to_dict

    messages = [
        message.model_copy(update={"artifact": None}) if message.type == "tool" else message
        for message in OBJECTS["langchain"]()["messages"]
    ]
    google = OBJECTS["google"]()
    camel = {"mode": "json", "by_alias": True, "exclude_none": True}
    return {
        "langchain_lc": {"messages": [dumpd(message) for message in messages]},
        "langchain_to_dict": {"messages": messages_to_dict(messages)},
        "google_camel": {
            "messages": [content.model_dump(**camel) for content in google["messages"]],
            "response": google["response"].model_dump(**camel),
        },
    }


def source(name: str) -> dict[str, str]:
    about = metadata(LIBRARY[name])
    licence = about.get("License-Expression") or about.get("License") or ""
    if not licence or len(licence) > 40:
        licence = next((value for key, value in about.items() if "License ::" in value), licence[:40])
    return {"library": LIBRARY[name], "version": about["Version"], "licence": licence}


def main() -> None:
    """Write all files."""
    made = {name: dumped(make()) for name, make in OBJECTS.items()} | dumped(other_dumps())
    for name, turn in made.items():
        text = json.dumps({"source": source(name), "turn": turn}, indent=1, ensure_ascii=False)
        RECORDED.joinpath(f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

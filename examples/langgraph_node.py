"""A graph of LangGraph whose node asks for the turn's context itself. No key: a scripted model."""

import os
from tempfile import TemporaryDirectory
from typing import Any

from langchain.chat_models import init_chat_model
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph  # pyright: ignore[reportMissingTypeStubs] - it ships its types

import optchat
from optchat.adapters.langchain import LangChainMessages

MODEL = os.environ.get("OPTCHAT_EXAMPLE_MODEL")  # as "openai:gpt-5"; its key as LangChain's package for it wants it
WIRE, BUDGET = LangChainMessages(), optchat.Budget(window=128_000, output=4_000)


def scripted(messages: list[AnyMessage]) -> AIMessage:
    told = any("No Redis" in str(message.content) for message in messages)
    return AIMessage("The broker." if told else "No Redis: the broker that we have persists.")


with TemporaryDirectory() as folder, optchat.open(f"{folder}/memory.db", scope="example") as memory:
    model: Any = init_chat_model(MODEL) if MODEL else RunnableLambda(scripted)

    def answer(state: MessagesState, config: RunnableConfig) -> dict[str, list[AnyMessage]]:
        session = memory.session(config.get("configurable", {})["thread_id"], adapter=WIRE, host="langgraph")
        with session.turn(state["messages"][-1]) as turn:  # the thread's earlier turns are in memory already
            said: AnyMessage = model.invoke(turn.context(BUDGET).messages)
            turn.add(said)
        return {"messages": [said]}

    graph: Any = StateGraph(MessagesState)
    graph.add_node("answer", answer).add_edge(START, "answer")
    agent = graph.compile(checkpointer=InMemorySaver())
    for thread, text in (("monday", "Redis for the queue, or the broker that we have?"), ("tuesday", "Where is it?")):
        said = {"messages": [HumanMessage(text)]}
        print(agent.invoke(said, {"configurable": {"thread_id": thread}})["messages"][-1].text)

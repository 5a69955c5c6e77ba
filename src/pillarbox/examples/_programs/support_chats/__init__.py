"""Summaries of support chats: session windows, and a language model that limits its rate."""

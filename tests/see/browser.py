"""Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

WIDE, PHONE = (1280, 900), (390, 844)


@contextmanager
def browser() -> Iterator[Any]:
    # (Only `make test-see` installs it.)
    playwright_api = import_module("playwright.sync_api")
    with playwright_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        try:
            yield chromium
        finally:
            chromium.close()


@contextmanager
def page(chromium: Any, url: str, size: tuple[int, int] = WIDE, *, dark: bool = False) -> Iterator[Any]:
    context = chromium.new_context(
        viewport={"width": size[0], "height": size[1]}, color_scheme="dark" if dark else "light"
    )
    opened = context.new_page()
    errors: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    try:
        opened.goto(url)
        opened.wait_for_selector("body[data-drawn]", timeout=60_000)
        yield opened
        assert errors == []
    finally:
        context.close()


def overflows(opened: Any) -> bool:
    wide: bool = opened.evaluate("document.documentElement.scrollWidth > window.innerWidth")
    return wide

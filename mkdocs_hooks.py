"""What MkDocs does beyond its plugins: the page of examples shows the scripts that it lists, as they are."""

from pathlib import Path
from typing import Any

EXAMPLES = "examples/index.md"


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Put the text of every script under the page of examples, each under its name."""
    if page.file.src_uri != EXAMPLES:
        return markdown
    scripts = sorted((Path(config["docs_dir"]) / EXAMPLES).parent.glob("*.py"))
    return "\n\n".join([markdown, *(f"## {path.name}\n\n```python\n{path.read_text()}```" for path in scripts)])

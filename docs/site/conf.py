# SPDX-License-Identifier: Apache-2.0
"""Sphinx's settings for the site: README, docs/, the results, the core's READMEs, and the reference of the APIs.

The project's root is the source folder, so that the same relative links work in the repository and on the site.
"""

import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "allocator" / "torch"))  # the package `weir`, which autodoc imports

project = "Weir"
author = "The Weir authors"
project_copyright = author
version = release = re.search(r"project\(weir VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]

extensions = ["myst_parser", "breathe", "sphinx.ext.autodoc"]
root_doc = "docs/index"
include_patterns = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/**", "bench/results/*.md",
                    "allocator/core/**", "allocator/*/README.md", "bench/torch/README.md", "bench/frameworks/README.md",
                    "packaging/README.md", "tests/torch/README.md"]
exclude_patterns = ["build*/**", "docs/site/**", "docs/pictures/**", "docs/examples/**", "**/CMakeLists.txt"]
source_suffix = {".md": "markdown"}

myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline"]
suppress_warnings = [
    "myst.header",  # some results begin a table's section one level down
    # Breathe declares `namespace weir` once a header; in C a structure and its typedef have one name.
    "duplicate_declaration.cpp", "duplicate_declaration.c",
]

breathe_projects = {"weir": str(ROOT / "build" / "docs" / "doxygen" / "xml")}
breathe_default_project = "weir"
breathe_domain_by_file_pattern = {"*/weir.h": "c"}
breathe_default_members = ("members", "undoc-members")
autodoc_mock_imports = ["torch"]
autodoc_member_order = "bysource"

html_theme = "furo"
html_title = f"Weir {release}"
html_copy_source = False
html_show_sphinx = False
pygments_style, pygments_dark_style = "tango", "native"

PICTURE = re.compile(r"<picture>\s*<source [^>]*srcset=\"(?P<dark>[^\"]+)\">\s*<img (?P<image>[^>]*)>\s*</picture>")
# Pages whose menu has others below them.
BELOW = {
    "bench/results/README": ("2026-*", "soak"),
    "allocator/core/README": ("*/README",),
}
HEADING = re.compile(r"^#+ .*$", re.MULTILINE)
LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")
DIRECTORY_LINK = re.compile(r"\[(?P<words>[^\]]+)\]\((?P<target>(?!\w+:)[^)#\s]+)\)")


def picture(match):
    """A picture for light and one for dark pages: the theme's switch chooses, not the system alone."""
    light = re.search(r"src=\"([^\"]+)\"", match["image"])[1]
    words = re.search(r"alt=\"([^\"]*)\"", match["image"])[1]
    return "\n".join(f"```{{image}} {path}\n:alt: {words}\n:class: only-{theme}\n```\n"
                     for path, theme in ((light, "light"), (match["dark"], "dark")))


def adapt(app, docname, source):
    """What Markdown of the repository has and Sphinx has not: pictures by theme, links to folders and in headings."""
    folder = (ROOT / docname).parent

    def link(match):
        path = folder / match["target"]
        if not path.is_dir():
            return match[0]
        readme = pathlib.PurePosixPath(match["target"]) / "README.md"
        return f"[{match['words']}]({readme})" if (folder / readme).is_file() else match["words"]

    # Sphinx's table of contents takes no links in headings.
    text = HEADING.sub(lambda heading: LINK.sub(r"\1", heading[0]), source[0])
    source[0] = DIRECTORY_LINK.sub(link, PICTURE.sub(picture, text))
    if docname in BELOW:
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\n" + "\n".join(BELOW[docname]) + "\n```\n"


def docstring(app, what, name, obj, options, lines):
    """Docstrings are plain text: `x` is code, `name: ...` an argument, an indented paragraph a sketch in Python."""
    out, before, argument = [], "", False
    for line in lines:
        line = re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", line)
        found = (argument or not before.strip()) and re.match(r"(?P<name>[a-z]\w*): (?P<rest>.*)", line)
        if line.startswith("    ") and not before.strip():
            out += ["", ".. code-block:: python", ""]
        if found:
            out += ["", f"* ``{found['name']}``: {found['rest']}"]
        elif re.match(r"(Raises|Returns) ", line):
            out += ["", line]
        else:
            out.append(f"  {line}" if argument and line.strip() else line)
        argument = bool(found) or (argument and bool(line.strip()) and not re.match(r"(Raises|Returns) ", line))
        before = line
    lines[:] = out


def setup(app):
    app.connect("source-read", adapt)
    app.connect("autodoc-process-docstring", docstring)

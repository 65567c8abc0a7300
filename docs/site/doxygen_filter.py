# SPDX-License-Identifier: Apache-2.0
"""Doxygen's input filter: makes the plain comments of a header into documentation, and prints it.

usage: doxygen_filter.py HEADER | --self-test

The headers say what holds in plain comments, for readers of the code. Doxygen takes comments with marks only.
This adds them: a comment right above a declaration, or behind one on its line, documents the declaration;
the first comment of a file documents the file; an indented paragraph is code.
"""

import re
import sys

TRAILING = re.compile(r"^(?P<code>\s*[^\s/#].*?[;,})\w\]])(?P<space>\s+)//(?!/)\s?(?P<text>.*)$")
TRAILING_C = re.compile(r"^(?P<code>.*\S)(?P<space>\s+)/\*\s*(?P<text>.*?)\s*\*/\s*$")
NOT_DOCUMENTED = re.compile(r"\s*(#|namespace\b|\}|extern \"C\"|public:|private:|protected:|$)")


def escaped(text):
    """As Doxygen shows it literally: outside `code`, < and > are no tags, and @, \\ and # no commands."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([<>@\\#&])", r"\\\1", part).replace('"', "&quot;")
                   for part in parts)  # in quotes Doxygen takes `code` literally


def body(lines):
    """The lines of a comment, less its marks, as Doxygen's: indented ones are code."""
    out, code, before = [], False, ""
    for line in lines:
        indented = line.startswith("  ") or (code and not line.strip())
        if indented and not code and not before.strip():  # else it goes on with a list's entry
            # A sketch that says in words what stands between two calls is no C++.
            out.append("@code{.text}" if any(more.lstrip().startswith("...") for more in lines) else "@code{.cpp}")
            code = True
        elif code and not indented:
            out.append("@endcode")
            code = False
        out.append(line if code else escaped(line))
        before = line
    if code:
        while out and not out[-1].strip():
            out.pop()
        out.append("@endcode")
    return out


def comment(lines, indent, head=()):
    return [f"{indent}/// {line}".rstrip() for line in (*head, *body(lines))]


def cpp(lines):
    out, at, first = [], 0, True
    while at < len(lines):
        line = lines[at]
        alone = re.match(r"(\s*)//(?!/) ?(.*)$", line)
        if alone:
            block, indent = [], alone[1]
            while at < len(lines) and (more := re.match(rf"{indent}//(?!/) ?(.*)$", lines[at])):
                block.append(more[1])
                at += 1
            following = lines[at] if at < len(lines) else ""
            if first:
                out += comment(block, indent, ("@file",)) + [""]
            elif NOT_DOCUMENTED.match(following):
                out += [f"{indent}// {text}" for text in block]
            else:
                out += comment(block, indent)
            first = False
            continue
        first = first and not line.strip()
        trailing = TRAILING.match(line)
        if trailing and not trailing["text"].startswith("NOLINT") and not trailing["code"].rstrip().endswith("{"):
            column = len(trailing["code"]) + len(trailing["space"])
            texts = [trailing["text"]]
            at += 1
            while at < len(lines) and re.match(rf"\s{{{column}}}//(?!/)", lines[at]):
                texts.append(lines[at][column + 2:].strip())
                at += 1
            out.append(f"{trailing['code']}  ///< {escaped(' '.join(texts))}")
            continue
        out.append(line)
        at += 1
    return out


def c(text):
    """Comments of C: /* above a declaration, or behind one. */"""
    out, position = [], 0
    for match in re.finditer(r"/\*(.*?)\*/", text, re.DOTALL):
        before, after = text[position:match.start()], text[match.end():]
        inner = [re.sub(r"^\s*\* ?", "", line) if number else line.lstrip()
                 for number, line in enumerate(match[1].split("\n"))]
        words = "\n".join(body([line.rstrip() for line in inner]))
        line_before = before.rsplit("\n", 1)[-1]
        following = after.lstrip(" \t")
        out.append(before)
        if match.start() == 0:
            out.append(f"/** @file\n{words}\n*/")
        elif line_before.strip():
            declared = not line_before.lstrip().startswith("#") or "define" in line_before
            out.append(f"/**< {words} */" if declared else match[0])
        elif following.startswith("\n") and not NOT_DOCUMENTED.match(following[1:].split("\n", 1)[0] or ""):
            out.append(f"/** {words} */")
        else:
            out.append(match[0])
        position = match.end()
    return "".join(out) + text[position:]


def filtered(name, text):
    if text.lstrip().startswith("/*"):
        return c(text)
    return "\n".join(cpp(text.split("\n")))


def self_test():
    text = ("// What it is, of <T>.\n//\n//   Code code;\n#pragma once\n\n// Adds `a<b>`.\n// More.\nint add(int a);  // why,\n"
            "                 // and more\n\n// A section.\n\nint x;\n  int y = 1;  // NOLINT\n")
    assert filtered("x.h", text) == (
        "/// @file\n/// What it is, of \\<T\\>.\n///\n/// @code{.cpp}\n///   Code code;\n/// @endcode\n\n#pragma once\n\n"
        "/// Adds `a<b>`.\n/// More.\nint add(int a);  ///< why, and more\n\n// A section.\n\nint x;\n  int y = 1;  // NOLINT\n"), filtered("x.h", text)
    text = "/* What it is.\n */\n#define A ((b)0) /* why */\n\n/* Adds. */\nint add(int a);\n/* A section. */\n\n#endif /* X */\n"
    assert filtered("x.h", text) == ("/** @file\nWhat it is.\n\n*/\n#define A ((b)0) /**< why */\n\n/** Adds. */\nint add(int a);\n"
                                     "/* A section. */\n\n#endif /* X */\n"), filtered("x.h", text)


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        self_test()
    else:
        with open(sys.argv[1], encoding="utf-8") as header:
            sys.stdout.write(filtered(sys.argv[1], header.read()))

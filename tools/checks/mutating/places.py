# SPDX-License-Identifier: Apache-2.0
"""Where a C++ source can be changed, and to what. A lexer, no parser: it knows comments, strings,
preprocessor lines and brackets, and takes the rest from the project's own format (clang-format): a
binary operator has blanks on both sides, the bracket of a template has none before it. A wrong guess
costs a mutant that does not compile.
"""

import dataclasses
import re

TOKEN = re.compile(r"""
    (?P<blank>\s+)
  | (?P<comment>//(?:[^\n\\]|\\.|\\\n)*|/\*.*?\*/)
  | (?P<string>(?:u8|[uUL])?R"(?P<fence>[^()\\\s]{0,16})\(.*?\)(?P=fence)"|(?:u8|[uUL])?"(?:[^"\\\n]|\\.)*")
  | (?P<char>(?:u8|[uUL])?'(?:[^'\\\n]|\\.)+')
  | (?P<number>\.?\d(?:'?[\w.]|[eEpP][+-])*)
  | (?P<name>[A-Za-z_]\w*)
  | (?P<sign><=>|<<=|>>=|\.\.\.|->\*|::|->|\+\+|--|<<|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|.)
""", re.VERBOSE | re.DOTALL)
DIRECTIVE = re.compile(r"[ \t]*#(?:[^\n\\/]|\\.|\\\n|/(?![/*])|/\*.*?\*/)*", re.DOTALL)

CLOSING = {"(": ")", "[": "]", "{": "}"}
COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
ARITHMETIC = {"+": "-", "-": "+", "*": "/", "/": "*", "%": "*"}
LOGIC = {"&&": "||", "||": "&&"}
ASSIGNMENT = {"+=": "-=", "-=": "+="}
TYPES = {"class", "struct", "union", "enum", "namespace"}
# A statement that begins with one of these is no call.
KEYWORDS = {"return", "if", "else", "for", "while", "do", "switch", "case", "default", "break", "continue", "goto", "using",
            "typedef", "static_assert", "throw", "delete", "new", "co_return", "co_await", "co_yield", "auto", "const", "template",
            "friend", "static", "constexpr", "virtual", "explicit", "operator", "try", "catch", "public", "private", "protected",
            "sizeof", "noexcept", "extern", "inline", "alignas", "requires", "concept", "void", "bool", "int", "mutable"} | TYPES


@dataclasses.dataclass(frozen=True)
class Token:
    kind: str
    text: str
    begin: int
    end: int


@dataclasses.dataclass(frozen=True)
class Change:
    """`text` in place of source[begin:end]; `name` is what a list of equivalent changes says."""
    kind: str
    name: str
    begin: int
    end: int
    text: str


def tokens_of(source):
    """All tokens but blanks, comments and preprocessor lines."""
    tokens, at, new_line = [], 0, True
    while at < len(source):
        if new_line:
            directive = DIRECTIVE.match(source, at)
            if directive:
                at, new_line = directive.end(), False
                continue
        match = TOKEN.match(source, at)
        kind, at = match.lastgroup, match.end()
        if kind == "fence":
            kind = "string"
        if kind == "blank":
            new_line = new_line or "\n" in match[0]
            if new_line:  # a directive may stand behind the last line's end
                at = match.start() + match[0].rfind("\n") + 1 if "\n" in match[0] else match.end()
                blanks = re.compile(r"[ \t]*").match(source, at)
                if source[blanks.end():blanks.end() + 1] != "#":
                    at = match.end()
        else:
            if kind != "comment":
                tokens.append(Token(kind, match[0], match.start(), match.end()))
            new_line = False
    return tokens


class Source:
    """A source's tokens, with what its brackets enclose."""

    def __init__(self, text):
        self.text = text
        self.tokens = tokens_of(text)
        self.match = {}    # an opening bracket's index and its closing one's, both ways
        self.around = []   # of each token: the index of the innermost { ( [ around it, or -1
        self.angles = set()  # the indices of < and > that are brackets of templates
        self.body = {}     # of each {: whether statements stand in it
        self._brackets()

    def _brackets(self):
        stack = []
        for index, token in enumerate(self.tokens):
            if token.kind == "sign" and token.text in CLOSING.values() and stack:
                opening = stack.pop()
                self.match[opening], self.match[index] = index, opening
            self.around.append(stack[-1] if stack else -1)
            if token.kind == "sign" and token.text in CLOSING:
                if token.text == "{":
                    self.body[index] = not self._is_type(index)
                stack.append(index)
            elif token.kind == "sign" and set(token.text) <= set("<>") and not self.is_binary(index):
                self.angles.add(index)

    def is_binary(self, index):
        """Whether the sign has blanks on both sides."""
        token = self.tokens[index]
        return self.text[token.begin - 1:token.begin].isspace() and self.text[token.end:token.end + 1].isspace()

    def head(self, index):
        """The indices of the tokens between the statement's begin and `index`, brackets passed over."""
        result, at, around = [], index - 1, self.around[index]
        while at > around:
            text = self.tokens[at].text
            if text == "}" and not (result and self.tokens[result[-1]].text in (",", "{", ")", ".", "->")):
                break
            if text == ";":
                break
            if at in self.match and text in ")]}":
                result.append(at)
                at = self.match[at]
            result.append(at)
            at -= 1
        return result[::-1]

    def _is_type(self, brace):
        """Whether a class, an enumeration or a namespace is what the brace opens."""
        angles = 0
        for index in self.head(brace):
            token = self.tokens[index]
            if token.text == "<" and index in self.angles:
                angles += 1
            elif set(token.text) == {">"} and index in self.angles:
                angles -= len(token.text)
            elif token.text in TYPES and angles <= 0:
                return True
        return False

    def in_function(self, index):
        """The { of the function around, or None. (An initialiser's { counts as a function's part.)"""
        found, at = None, self.around[index]
        while at >= 0:
            if self.tokens[at].text == "{":
                if not self.body[at]:
                    break
                found = at
            at = self.around[at]
        return found

    def innermost_function(self, index):
        """The { of the function or lambda around: the innermost one that no statement owns."""
        at = self.around[index]
        while at >= 0:
            if self.tokens[at].text == "{" and self.body[at] and not self._is_block(at):
                return at
            at = self.around[at]
        return None

    def _is_block(self, brace):
        """Whether the { opens a statement's block, and no function's."""
        before = self.tokens[brace - 1].text
        if before in (";", "{", "}", "else", "do", ":", "try"):
            return True
        if before == ")":
            opening = self.match.get(brace - 1, 0)
            first = self.tokens[opening - 1].text
            return first in ("if", "for", "while", "switch", "catch") or (
                first == "constexpr" and self.tokens[opening - 2].text == "if")
        return False

    def returns_bool(self, brace):
        """Whether the function with this body says that it returns bool."""
        head = self.head(brace)
        texts = [self.tokens[i].text for i in head]
        if "->" in texts:
            return texts[-texts[::-1].index("->"):] == ["bool"]
        skipped = {"inline", "static", "constexpr", "virtual", "friend", "[", "]", "explicit", "operator", "public", "private",
                   "protected", ":"}
        return next((text for text in texts if text not in skipped), None) == "bool"

    def statement_begins(self, index):
        """Whether a statement can begin with this token."""
        before = self.tokens[index - 1] if index else None
        if before is None:
            return False
        if before.text in (";", "{", "}", "else", "do"):
            return self.tokens[self.around[index]].text == "{" if self.around[index] >= 0 else False
        if before.text == ")":
            opening = self.match.get(index - 1, 0)
            return self.tokens[opening - 1].text in ("if", "for", "while")
        return before.text == ":" and self._after_case(index)

    def _after_case(self, index):
        at = index - 1
        while at > 0 and self.tokens[at].text not in (";", "{", "}"):
            if self.tokens[at].text in ("case", "default"):
                return True
            at -= 1
        return False

    def statement_end(self, index):
        """The index of the ; that ends the statement, or None."""
        at = index
        while at < len(self.tokens):
            text = self.tokens[at].text
            if text == ";":
                return at
            if text in CLOSING and at in self.match:
                at = self.match[at]
            elif text in CLOSING.values():
                return None
            at += 1
        return None


def plus_one(number):
    """The literal with 1 more, its base, suffix and point kept; None for what is none."""
    match = re.fullmatch(r"(0[xX]|0[bB])?([\d.'a-fA-F]+)(.*)", number) if number[:2].lower() in ("0x", "0b") else \
        re.fullmatch(r"()([\d.']+)(.*)", number)
    if not match:
        return None
    digits = match[2].replace("'", "")
    if "." in digits:
        whole, _, rest = digits.partition(".")
        return f"{int(whole or '0') + 1}.{rest}{match[3]}"
    base = {"0x": 16, "0b": 2}.get((match[1] or "").lower(), 10)
    value, width = int(digits, base) + 1, len(digits)
    return (match[1] or "") + {16: f"{value:0{width}x}", 2: f"{value:0{width}b}", 10: str(value)}[base] + match[3]


def is_call(source, begin, end):
    """Whether tokens begin..end-1 are a call whose result nobody looks at."""
    tokens = source.tokens
    if tokens[begin].kind != "name" and tokens[begin].text not in ("::", "(", "*"):
        return False
    if tokens[begin].text in KEYWORDS or tokens[end - 1].text != ")" or end - begin < 3:
        return False
    at, last = begin, None
    while at < end:
        token = tokens[at]
        if at in source.match and token.text in CLOSING:
            at = source.match[at]
        elif token.kind == "sign" and token.text not in (".", "->", "::", "*") and at not in source.angles:
            # A sign outside brackets is an operator or an assignment; within <> it is part of a type.
            if token.text not in (",", "&"):
                return False
        elif token.kind == "name" and last is not None and (last.kind == "name" or last.text in ("*", "&") and at > begin + 1):
            return False  # two names side by side: a declaration
        elif token.kind == "name" and last is not None and last.text == ">" and at - 1 in source.angles:
            return False
        last = tokens[at]
        at += 1
    return True


def shown(text):
    return " ".join(text.split())


def changes_of(text):
    """Changes by place: {offset: [Change, ...]}, in the source's order."""
    source = Source(text)
    tokens = source.tokens
    found = []

    def add(kind, name, begin, end, new):
        found.append(Change(kind, name, begin, end, new))

    def replace(kind, token, new):
        add(kind, f"`{token.text}` to `{new}`", token.begin, token.end, new)

    skip_to = -1
    for index, token in enumerate(tokens):
        if token.text in ("assert", "static_assert", "alignas", "requires") and index + 1 in source.match:
            skip_to = max(skip_to, source.match[index + 1])
        if token.text == "[" and index + 1 < len(tokens) and tokens[index + 1].text == "[" and index in source.match:
            skip_to = max(skip_to, source.match[index])  # an attribute
        if index <= skip_to:
            continue
        if token.kind == "sign":
            if token.text in ASSIGNMENT:
                replace("assignment", token, ASSIGNMENT[token.text])
            elif token.text in LOGIC and source.is_binary(index):
                replace("logic", token, LOGIC[token.text])
            elif token.text in COMPARISONS and source.is_binary(index) and index not in source.angles:
                replace("comparison", token, COMPARISONS[token.text])
            elif token.text in ARITHMETIC and source.is_binary(index):
                replace("arithmetic", token, ARITHMETIC[token.text])
            elif token.text == "!" and index and tokens[index - 1].text != "operator":
                add("negation", "`!` left out", token.begin, token.end, "")
        elif token.kind == "number":
            before = tokens[index - 1].text if index else ""
            pure = before == "=" and index > 1 and tokens[index - 2].text in (")", "const", "override", "noexcept")
            new = plus_one(token.text)
            if new and not pure:
                replace("constant", token, new)
        elif token.text in ("true", "false"):
            replace("constant", token, "false" if token.text == "true" else "true")
        elif token.text in ("if", "while"):
            _condition(source, index, add)
        if source.in_function(index) is not None and source.statement_begins(index):
            end = source.statement_end(index)
            if end is None:
                continue
            if token.text == "return":
                _return(source, index, end, add)
            elif is_call(source, index, end):
                left = text[token.begin:tokens[end].end]
                add("call", f"`{shown(left)}` left out", token.begin, tokens[end].end, "{}")

    by_place = {}
    for change in sorted(found, key=lambda c: (c.begin, c.end, c.kind)):
        by_place.setdefault(change.begin, []).append(change)
    return by_place


def _condition(source, index, add):
    tokens, opening = source.tokens, index + 1
    if opening not in source.match or tokens[opening].text != "(":
        return  # `if constexpr`
    closing, begin, at = source.match[opening], opening + 1, opening + 1
    declares = False
    while at < closing:
        text = tokens[at].text
        if text == ";":
            begin, declares = at + 1, False
        elif text == "=" or text == ":":
            declares = True
        if at in source.match and text in CLOSING:
            at = source.match[at]
        at += 1
    if declares or begin >= closing:
        return
    condition = source.text[tokens[begin].begin:tokens[closing - 1].end]
    add("condition", f"`{tokens[index].text} ({shown(condition)})` to its contrary", tokens[begin].begin,
        tokens[closing - 1].end, f"!({condition})")


def _return(source, index, end, add):
    tokens = source.tokens
    brace = source.innermost_function(index)
    if brace is None:
        return
    statement = source.text[tokens[index].begin:tokens[end].end]
    if _is_early(source, end, brace):
        add("return", f"`{shown(statement)}` left out", tokens[index].begin, tokens[end].end, "{}")
    value = source.text[tokens[index + 1].begin:tokens[end - 1].end] if end > index + 1 else ""
    if value and value not in ("true", "false") and source.returns_bool(brace):
        add("returned bool", f"`{shown(statement)}` to its contrary", tokens[index].begin, tokens[end].end,
            f"return !({value});")


def _is_early(source, end, brace):
    """Whether the function goes on behind the return, if what leads to it does not hold."""
    tokens, at = source.tokens, end + 1
    while at < len(tokens) and at != source.match.get(brace):
        if tokens[at].text == "else":
            return False
        if tokens[at].text != "}":
            return True
        at += 1
    return False

"""Random small templates for jinja_compare.py, over the constructs chat templates use.

Expressions are drawn by the type they should have, and now and then by another, so that errors are
compared too.
"""

STRINGS = ["", "a", "Hello World", "  pad\t", "a,b,,c", "x\ny\n", "ünïcödé", "日本語テキスト", "👍🏽ok",
           "'quote'", "\"double\"", "ab" * 5, "ß", "ÀÉ", "12", " -7 ", "3.5", "1e3", "nan", "0x1f",
           "<b>&amp;</b>", "back\\slash", "\x00\x1f\x7f", "tab\there", "\u2028\u00a0end", "ΑΣ ΑΣΑ",
           "fiﬁ", "ǆ", "İi", "\r\n", "one two  three"]
NUMBERS = [0, 1, 2, 3, 5, -1, -2, -7, 10, 100, 255]
FLOATS = [0.0, 0.5, 1.5, -2.5, 2.675, 1e16, 1e-5, 0.1, 3.0, 1e100, 123456.789]


def variables(rng):
    def scalar():
        return rng.choice([rng.choice(STRINGS), rng.choice(NUMBERS), rng.choice(FLOATS),
                           rng.choice([True, False, None])])

    def nested(depth):
        if depth == 0 or rng.random() < 0.4:
            return scalar()
        if rng.random() < 0.5:
            return [nested(depth - 1) for _ in range(rng.randint(0, 3))]
        return {rng.choice("abcxyz") + rng.choice(["", "1"]): nested(depth - 1)
                for _ in range(rng.randint(0, 3))}

    return {
        "s": rng.choice(STRINGS), "t": rng.choice(STRINGS),
        "n": rng.choice(NUMBERS), "m": rng.choice(NUMBERS),
        "f": rng.choice(FLOATS), "b": rng.random() < 0.5, "z": None,
        "xs": [rng.choice(NUMBERS) for _ in range(rng.randint(0, 5))],
        "ss": [rng.choice(STRINGS) for _ in range(rng.randint(0, 5))],
        "d": {key: scalar() for key in rng.sample(["a", "b", "c", "items", "get", "k"], 3)},
        "ds": [{"name": rng.choice(STRINGS), "role": rng.choice(["user", "tool", "User"]),
                "n": rng.choice(NUMBERS), "sub": {"v": scalar()}} for _ in range(rng.randint(0, 4))],
        "tree": nested(3),
    }


def quote(rng, text):
    out = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    mark = rng.choice("'\"")
    return mark + out.replace(mark, "\\" + mark) + mark


class Generator:
    def __init__(self, rng):
        self.rng = rng
        self.names = {"str": ["s", "t"], "int": ["n", "m"], "float": ["f"], "bool": ["b"],
                      "list": ["xs", "ss", "ds"], "strs": ["ss"], "ints": ["xs"], "dicts": ["ds"],
                      "dict": ["d"], "any": ["tree", "z", "undef"]}
        self.macros = []
        self.spaces = []
        self.loops = 0
        self.fresh = 0

    # Expressions.

    def pick(self, *options):
        return self.rng.choice(options)

    def chance(self, p):
        return self.rng.random() < p

    def expr(self, kind, depth=3):
        if self.chance(0.04):
            kind = self.pick("str", "int", "float", "bool", "list", "dict", "any")
        if depth <= 0 or self.chance(0.12):
            return self.leaf(kind)
        text = getattr(self, "make_" + kind)(depth - 1)
        return f"({text})" if self.chance(0.5) else text

    def leaf(self, kind):
        rng = self.rng
        if self.chance(0.6) and self.names.get(kind):
            return rng.choice(self.names[kind])
        if kind == "str":
            return quote(rng, rng.choice(STRINGS))
        if kind == "int":
            return str(rng.choice([0, 1, 2, 3, 7, 10]))
        if kind == "float":
            return self.pick("0.5", "1.25", "2e3", "1_0.5", "3.0")
        if kind == "bool":
            return self.pick("true", "false", "True", "False")
        if kind in ("list", "strs", "ints", "dicts"):
            return self.pick("[]", "[1, 2, 3]", "['a', 'B', 'b']", "(1, 2)", "(3,)", "range(4)",
                             "[[1, 2], [3, 4]]", "range(5, 0, -2)", "[none, 1]")
        if kind == "dict":
            return self.pick("{}", "{'a': 1}", "{'x': 'y', 'k': [1], 3: none}", "dict(a=1, b='c')")
        return self.pick("none", "undef", "tree", "z", "None", "[]", "0", "''")

    def make_any(self, d):
        kind = self.pick("str", "int", "float", "bool", "list", "dict", "cond", "item", "call",
                         "default")
        if kind == "cond":
            tail = f" else {self.expr('any', d)}" if self.chance(0.7) else ""
            return f"({self.expr('any', d)} if {self.expr('bool', d)}{tail})"
        if kind == "item":
            return self.pick(f"{self.expr('dict', d)}.{self.pick('a', 'k', 'x', 'items', 'nope')}",
                             f"{self.leaf('dict')}[{self.expr('str', d)}]",
                             f"{self.leaf('list')}[{self.expr('int', d)}]",
                             f"{self.leaf('list')}.{self.pick('0', '1', '7')}",
                             "tree.a", "tree[0]", "tree.a.b", "ds[0].sub.v", "ds[0]['name']",
                             f"{self.leaf('str')}[{self.expr('int', d)}]",
                             f"ds|first|default({{}})", "xs[-1]", "z.a", "undef.a", "undef[0]",
                             "loop.index", "d['get']", "undef", "d._x", "s._y")
        if kind == "call":
            if self.macros and self.chance(0.8):
                name, arity = self.rng.choice(self.macros)
                args = [self.expr("any", d) for _ in range(self.rng.randint(0, arity + 1))]
                if self.chance(0.2):
                    args.append(f"{self.pick('a', 'q', 'z')}={self.expr('any', d)}")
                return f"{name}({', '.join(args)})"
            return self.pick("d.get('a')", "d.get('nope', 3)", "undef()", "s()",
                             f"{self.leaf('dict')}.get({self.expr('str', d)}, {self.leaf('any')})",
                             "strftime_now('%Y-%m-%d %H:%M')", "namespace(a=1).a", "n()",
                             "raise_exception('no')")
        if kind == "default":
            name = self.pick("default", "d")
            tail = self.pick("", ", true", ", boolean=true")
            return f"{self.leaf('any')}|{name}({self.expr('any', d)}{tail})"
        return self.expr(kind, d)

    def make_str(self, d):
        e = self.expr
        s = lambda: self.expr("str", d)
        sep = self.pick("','", "' '", "'b'", "'ab'", "'\\n'", "''", "'a'")
        return self.pick(
            f"{s()} ~ {e('any', d)}", f"{s()} + {s()}", f"{s()} ~ {e('int', d)} ~ {s()}",
            f"{s()} * {self.pick('2', '0', '-1', '3')}", f"{self.pick('2', '3')} * {s()}",
            f"{s()}|{self.pick('upper', 'lower', 'title', 'capitalize', 'trim', 'string', 'e', 'escape', 'safe', 'reverse', 'first', 'last', 'forceescape')}",
            f"{self.leaf('str')}.{self.pick('upper', 'lower', 'title', 'capitalize', 'strip', 'lstrip', 'rstrip')}()",
            f"{self.leaf('str')}.{self.pick('strip', 'lstrip', 'rstrip')}({self.pick(sep, quote(self.rng, 'abo '), 'none')})",
            f"{s()}|replace({s()}, {s()})", f"{self.leaf('str')}.replace({sep}, {s()})",
            f"{self.leaf('str')}.replace({sep}, {s()}, {self.pick('1', '0', '-1', '2')})",
            f"{e('list', d)}|join({s()})", f"{e('list', d)}|join", f"ds|join({sep}, attribute='name')",
            f"{sep}.join({e('strs', d)})",
            f"{self.leaf('str')}[{self.slice(d)}]", f"{self.leaf('str')}[{e('int', d)}]",
            f"{e('any', d)}|tojson", f"{e('any', d)}|tojson(indent={self.pick('2', '0', '1', 'none', repr(chr(9)))})",
            f"{e('any', d)}|tojson(ensure_ascii={self.pick('true', 'false')}, sort_keys={self.pick('true', 'false')})",
            f"{e('any', d)}|tojson(separators=({self.pick(repr(','), repr(', '))}, ':'))",
            f"{e('any', d)}|string", f"{s()}|indent({self.pick('2', '4', '0', repr('> '))}{self.pick('', ', true', ', false, true', ', first=true')})",
            f"{s()}|trim({sep})", f"{self.leaf('str')}.split({self.pick(sep, '', 'none')})[{self.pick('0', '-1', '1')}]",
            f"{e('list', d)}|string", f"{e('float', d)}|string", f"{s()}|default({s()}, true)",
            f"({s()} if {e('bool', d)} else {s()})",
            f"{self.leaf('str')}.{self.pick('removeprefix', 'removesuffix')}({sep})",
            f"{self.leaf('str')}.split({sep})|map({self.pick(repr('upper'), repr('trim'), repr('length'))})|join('|')",
        )

    def slice(self, d):
        bound = lambda: self.pick("", "", self.leaf("int"), "-1", "-3", "2", "100", "none", "z")
        step = self.pick("", "", ":", ":2", ":-1", ":-2", ":0", ":100")
        return f"{bound()}:{bound()}{step}"

    def make_int(self, d):
        i = lambda: self.expr("int", d)
        return self.pick(
            f"{i()} {self.pick('+', '-', '*', '//', '%')} {i()}", f"-{i()}", f"+{self.leaf('int')}",
            f"{self.leaf('int')} ** {self.pick('2', '0', '3', '-1')}",
            f"{self.expr('list', d)}|{self.pick('length', 'count')}", f"{self.expr('str', d)}|length",
            f"{self.expr('any', d)}|int", f"{self.expr('str', d)}|int({self.pick('9', '-1', 'default=5')})",
            f"{self.expr('str', d)}|int(0, {self.pick('16', '8', '0', '2')})",
            f"{i()}|abs", f"{self.expr('ints', d)}|{self.pick('sum', 'max', 'min', 'first', 'last')}",
            f"{self.leaf('str')}.{self.pick('find', 'rfind', 'count', 'index')}({self.expr('str', d)})",
            f"{self.leaf('str')}.find({self.expr('str', 0)}, {i()}, {i()})",
            f"{self.leaf('list')}.{self.pick('count', 'index')}({i()})",
            f"ds|sum(attribute='n')", f"{self.expr('dict', d)}|length", f"{self.expr('float', d)}|int",
            f"{self.expr('bool', d)} + {i()}", f"{self.expr('int', d)}|round",
        )

    def make_float(self, d):
        f = lambda: self.expr(self.pick("float", "int"), d)
        return self.pick(f"{f()} {self.pick('+', '-', '*', '/', '//', '%')} {f()}", f"{f()}|float",
                         f"{self.expr('str', d)}|float", f"{self.expr('str', d)}|float(1.5)",
                         f"{f()}|round({self.pick('', '1', '2', '0')})",
                         f"{f()}|round({self.pick('1', '0')}, {self.pick(repr('ceil'), repr('floor'))})",
                         f"{f()}|abs", f"-{self.leaf('float')}", f"{self.leaf('float')} ** 2",
                         f"{self.leaf('float')} ** 0.5")

    def make_bool(self, d):
        e = self.expr
        test = self.pick("defined", "undefined", "none", "string", "mapping", "iterable", "sequence",
                         "boolean", "number", "integer", "float", "true", "false", "callable",
                         "lower", "upper", "escaped", f"in {self.leaf('list')}", f"eq {self.leaf('any')}",
                         f"equalto({self.leaf('any')})", f"ne {self.leaf('int')}", "odd", "even",
                         "divisibleby 2", "divisibleby(3)", f"gt {self.leaf('int')}",
                         f"lessthan({self.leaf('int')})", "sameas none", "sameas true")
        op = self.pick("==", "!=", "<", "<=", ">", ">=")
        kind = self.pick("int", "str", "float", "any", "list")
        return self.pick(
            f"{e('any', d)} is {self.pick('', 'not ')}{test}", f"{e(kind, d)} {op} {e(kind, d)}",
            f"{e('int', d)} {op} {e('int', d)} {self.pick('<', '==', '>=')} {e('float', d)}",
            f"{e('any', d)} {self.pick('==', '!=')} {e('any', d)}",
            f"not {e('any', d)}", f"{e('any', d)} {self.pick('and', 'or')} {e('any', d)}",
            f"{e('str', d)} {self.pick('in', 'not in')} {e('str', d)}",
            f"{e('any', d)} {self.pick('in', 'not in')} {e('list', d)}",
            f"{e('str', d)} in {e('dict', d)}",
            f"{self.leaf('str')}.{self.pick('startswith', 'endswith')}({self.pick(e('str', d), '(' + repr('a') + ', ' + repr('x') + ')')})",
            f"{self.leaf('str')}.{self.pick('isdigit', 'isalpha', 'isspace', 'isupper', 'islower', 'isalnum')}()",
        )

    def make_list(self, d):
        e = self.expr
        test = self.pick("'odd'", "'string'", "'defined'", "'gt', 1", "'none'", "'equalto', 2",
                         "'in', [1, 2, 'a']", "")
        attr = self.pick("'n'", "'name'", "'role'", "'sub.v'", "'nope'", "'sub'")
        attr_test = self.pick("", ", 'equalto', 'user'", ", 'defined'", ", 'string'", ", 'gt', 2",
                              ", 'in', ['tool', 2]")
        tail = self.pick("|list", "|list", "|list", "")
        return self.pick(
            f"{e('list', d)} + {e('list', d)}", f"[{e('any', d)}, {e('any', d)}]",
            f"({e('any', d)}, {e('any', d)})", f"({e('any', d)},)", f"[{e('any', d)},]",
            f"{self.leaf('list')}[{self.slice(d)}]", f"{e('list', d)}|list", f"{e('str', d)}|list",
            f"{e('list', d)}|sort", f"{e('list', d)}|sort(reverse=true)",
            f"ss|sort(case_sensitive={self.pick('true', 'false')})", f"ds|sort(attribute={attr})|map(attribute='n'){tail}",
            f"ds|sort(attribute='role,n', reverse=true)|map(attribute='n'){tail}",
            f"{e('list', d)}|unique{tail}", f"ds|unique(attribute={attr}){tail}",
            f"{e('list', d)}|reverse{tail}", f"{e('list', d)}|{self.pick('select', 'reject')}({test}){tail}",
            f"ds|{self.pick('selectattr', 'rejectattr')}({attr}{attr_test}){tail}",
            f"ds|map(attribute={attr}){tail}", f"ds|map(attribute={attr}, default='none'){tail}",
            f"{e('list', d)}|map({self.pick(repr('string'), repr('upper'), repr('int'), repr('tojson'))}){tail}",
            f"{e('list', d)}|map('default', 'x', true){tail}",
            f"{e('dict', d)}.{self.pick('keys', 'values', 'items')}(){tail}", f"{e('dict', d)}|items{tail}",
            f"{e('dict', d)}|dictsort", f"{e('dict', d)}|dictsort({self.pick('true', 'reverse=true', 'by=' + repr('value'))})",
            f"{e('dict', d)}|list", f"{self.leaf('str')}.split({self.pick('', repr(','), repr('a'), 'none, 1', repr(' ') + ', 1')})",
            f"{self.leaf('str')}.rsplit({self.pick('', repr(','), 'none, 1', repr('a') + ', 1')})",
            f"{self.leaf('str')}.splitlines({self.pick('', 'true')})",
            f"range({e('int', d)})", f"range({e('int', d)}, {e('int', d)}, {self.pick('1', '2', '-1', '0')})",
            f"{e('list', d)} * 2", f"{self.leaf('str')}.partition({self.pick(repr(','), repr('o'))})",
        )

    def make_strs(self, d):
        return self.pick("ss", f"{self.leaf('str')}.split()", f"[{self.expr('str', d)}]",
                         "ds|map(attribute='name')|list", "ss|map('upper')|list", "ss[::-1]")

    def make_ints(self, d):
        return self.pick("xs", f"[{self.expr('int', d)}, {self.expr('int', d)}]", "xs|sort",
                         "range(5)", "xs[1:]", "ds|map(attribute='n')|list")

    def make_dicts(self, d):
        return "ds"

    def make_dict(self, d):
        e = self.expr
        return self.pick(f"{{'a': {e('any', d)}, {e('str', d)}: {e('any', d)}}}", "d",
                         f"dict({self.leaf('dict')}, k={e('any', d)})", "ds[0]",
                         f"{{1: {e('any', d)}, 1.0: 2, true: 3}}", f"dict(d|items)",
                         f"{{{e('any', d)}: 1}}", "d.copy()")

    # Statements.

    def tag(self, body):
        left = self.pick("", "", "", "-", "+")
        right = self.pick("", "", "", "-", "+")
        pad = self.pick(" ", " ", "", "\n  ")
        return "{%" + left + (pad or " ") + body + " " + right + "%}"

    def output(self, expression):
        left = self.pick("", "", "-")
        right = self.pick("", "", "-")
        return "{{" + left + " " + expression + " " + right + "}}"

    def data(self):
        return self.pick("", "", " ", "\n", "  \n  ", "text", "a\n", "\n\n", "  x", "{ }", "%", "#",
                         "é ", "\t", "line\n  ")

    def body(self, depth, count=None):
        saved = {key: list(value) for key, value in self.names.items()}
        macros, spaces = list(self.macros), list(self.spaces)
        out = self.data()
        for _ in range(count if count is not None else self.rng.randint(0, 3)):
            out += self.statement(depth) + self.data()
        self.names, self.macros, self.spaces = saved, macros, spaces
        return out

    def name(self):
        self.fresh += 1
        return self.pick("v", "w", "item", f"v{self.fresh}", "s", "n")

    def statement(self, depth):
        if depth <= 0:
            return self.output(self.expr("any", 2))
        kind = self.pick("out", "out", "out", "if", "if", "for", "for", "for", "set", "set", "set",
                         "setblock", "macro", "macro", "call", "filter", "with", "raw", "comment",
                         "ns", "ns", "generation", "control", "recursive")
        return getattr(self, "stmt_" + kind)(depth - 1)

    def stmt_out(self, depth):
        return self.output(self.expr(self.pick("any", "str", "list", "bool", "int", "float", "dict"), 3))

    def stmt_if(self, depth):
        out = self.tag("if " + self.expr("bool", 2)) + self.body(depth)
        for _ in range(self.pick(0, 0, 1, 2)):
            out += self.tag("elif " + self.expr("any", 2)) + self.body(depth)
        if self.chance(0.5):
            out += self.tag("else") + self.body(depth)
        return out + self.tag("endif")

    def stmt_for(self, depth):
        form = self.pick("one", "one", "pair")
        if form == "pair":
            target = self.pick("k, v", "k, (v)", "k, v")
            source = self.pick("d.items()", "d|items", "d|dictsort", "{'a': 1}.items()", "[[1, 2], [3, 4]]",
                               self.expr("dict", 1) + ".items()", "[(1, 2, 3)]")
            names = ["k", "v"]
        else:
            target = self.pick("x", "item", "y")
            source = self.expr(self.pick("list", "list", "ints", "strs", "dicts", "str", "dict", "any"), 2)
            names = [target]
        tail = " if " + self.pick(names[-1] + " is string", names[0], self.expr("bool", 1),
                                  f"{names[-1]} != 2") if self.chance(0.3) else ""
        saved = {key: list(value) for key, value in self.names.items()}
        self.names["any"] = self.names["any"] + names * 3
        self.loops += 1
        body = self.data()
        if self.chance(0.6):
            loop = self.pick("loop.index", "loop.index0", "loop.first", "loop.last", "loop.length",
                             "loop.revindex", "loop.revindex0", "loop.depth", "loop.previtem",
                             "loop.nextitem", "loop.cycle('a', 'b')", f"loop.changed({names[-1]})",
                             "'x' if not loop.last", "loop.nope")
            body += self.output(loop)
        body += self.output(names[-1]) + self.body(depth)
        if self.chance(0.2):
            body += self.tag("if " + self.expr("bool", 1)) + self.tag(self.pick("break", "continue")) + self.tag("endif")
            body += self.data()
        self.loops -= 1
        self.names = saved
        out = self.tag(f"for {target} in {source}{tail}") + body
        if self.chance(0.3):
            out += self.tag("else") + self.body(depth)
        return out + self.tag("endfor")

    def stmt_recursive(self, depth):
        inner = self.pick("loop(x)", "loop(x.sub)", "loop(x[1:])")
        return (self.tag("for x in " + self.pick("[[1, [2]], [3]]", "tree", "xs", "[[], [[]]]") + " recursive")
                + self.output("loop.depth ~ ':' ~ loop.index") + self.data()
                + "{% if x is iterable and x is not string and x %}" + self.output(inner) + "{% endif %}"
                + self.tag("endfor"))

    def stmt_set(self, depth):
        form = self.pick("one", "one", "one", "pair")
        if form == "pair":
            return self.tag("set p, q = " + self.pick("1, 2", "[3, 4]", self.expr("list", 1), "'ab'", "q, p"))
        kind = self.pick("str", "int", "list", "dict", "any", "bool")
        name = self.name()
        out = self.tag(f"set {name} = {self.expr(kind, 3)}")
        self.names.setdefault(kind, []).append(name)
        return out

    def stmt_setblock(self, depth):
        name = self.name()
        tail = self.pick("", "", " | upper", " | trim | length", " | replace('a', 'b')")
        out = self.tag(f"set {name}{tail}") + self.body(depth) + self.tag("endset")
        self.names["str"].append(name)
        return out

    def stmt_ns(self, depth):
        if self.spaces and self.chance(0.75):
            space = self.rng.choice(self.spaces)
            attribute = self.pick("a", "b", "count")
            form = self.pick("set", "set", "out", "add")
            if form == "set":
                return self.tag(f"set {space}.{attribute} = {self.expr('any', 2)}")
            if form == "add":
                return self.tag(f"set {space}.count = {space}.count + 1")
            return self.output(f"{space}.{attribute}")
        self.fresh += 1
        space = f"ns{self.fresh}"
        out = self.tag(f"set {space} = namespace({self.pick('count=0', 'a=1, count=0', 'd', '')})")
        self.spaces.append(space)
        self.names["any"] += [f"{space}.a", f"{space}.count"]
        return out

    def stmt_macro(self, depth):
        self.fresh += 1
        name = f"mac{self.fresh}"
        parameters = self.pick([], ["a"], ["a", "q=1"], ["a", "q='x'", "z=a"], ["a=none"])
        extra = self.pick("", "", "", self.output("varargs"), self.output("kwargs"),
                          "{% if caller %}" + self.output("caller()") + "{% endif %}")
        saved = {key: list(value) for key, value in self.names.items()}
        self.names["any"] = self.names["any"] + ["a", "q", "a"]
        body = self.data() + extra + self.body(depth)
        if self.chance(0.15):
            body += "{% if a is iterable and a is not string and a %}" + self.output(f"{name}(a[1:])") + "{% endif %}"
        self.names = saved
        out = self.tag(f"macro {name}({', '.join(parameters)})") + body + self.tag("endmacro")
        self.macros.append((name, len(parameters)))
        return out

    def stmt_call(self, depth):
        if not self.macros:
            return self.stmt_out(depth)
        name, arity = self.rng.choice(self.macros)
        signature = self.pick("", "", "(c)", "(c=1)")
        args = ", ".join(self.expr("any", 1) for _ in range(self.rng.randint(0, arity)))
        return self.tag(f"call{signature} {name}({args})") + self.body(depth) + self.tag("endcall")

    def stmt_filter(self, depth):
        chain = self.pick("upper", "trim", "replace('a', 'b')", "indent(2)", "upper | reverse", "length",
                          "title")
        return self.tag(f"filter {chain}") + self.body(depth) + self.tag("endfilter")

    def stmt_with(self, depth):
        names = self.pick("v = 1", "v = s, w = v", "", f"v = {self.expr('any', 2)}")
        return self.tag(f"with {names}") + self.body(depth) + self.tag("endwith")

    def stmt_raw(self, depth):
        inner = self.pick("{{ x }}", "{% if %}", " {# c #} ", "\n  raw \n", "{%endra%}")
        return self.tag("raw").replace("+%}", "%}") + inner + self.tag("endraw")

    def stmt_comment(self, depth):
        return "{#" + self.pick("", "-", "+") + self.pick(" note ", "\n multi\nline ", "{{ x }} {% y %}") + self.pick("", "-", "+") + "#}"

    def stmt_generation(self, depth):
        return self.tag("generation") + self.body(depth) + self.tag("endgeneration")

    def stmt_control(self, depth):
        if self.loops == 0:
            return self.stmt_out(depth)
        return self.tag("if " + self.expr("bool", 2)) + self.tag(self.pick("break", "continue")) + self.tag("endif")


def generate(rng):
    """A template and the variables to render it with."""
    generator = Generator(rng)
    template = generator.body(rng.choice([1, 2, 2, 3, 4]), rng.randint(1, 5))
    return template + rng.choice(["", "", "\n", "\n\n"]), variables(rng)

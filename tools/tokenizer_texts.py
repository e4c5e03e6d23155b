"""Texts that are hard on tokenizers: every script, joiners, odd white space, broken UTF-8, code."""
import random

WORDS = (
    "the of and to in a is that it was for on are as with his they at be this from have or by one had not but "
    "what all were when we there can an your which their said if do will each about how up out them then she "
    "many some so these would other into has more her two like him see time could no make than first been its "
    "who now people my made over did down only way find use may water long little very after words called just "
    "where most know naïve café façade über Straße œuvre résumé señor İstanbul ıssız ǅungla ﬁne ﬂow ßS ẞ "
    "HTTPServer parseJSONValue iPhone McDonald XMLHttpRequest snake_case kebab-case SCREAMING_CASE camelCase"
).split()
CONTRACTIONS = ["s", "t", "re", "ve", "m", "ll", "d", "S", "T", "RE", "Re", "rE", "VE", "M", "LL", "Ll",
                "D", "ſ", "\u212a", "K", "ſs", "lL", "x", "tis", "em", "clock"]
APOSTROPHES = ["'", "'", "'", "\u2019", "`", "\u02bc", "\uff07"]
SCRIPTS = [
    (0x41, 0x5A), (0x61, 0x7A), (0xC0, 0xFF), (0x100, 0x24F), (0x250, 0x2AF), (0x2B0, 0x2FF), (0x370, 0x3FF),
    (0x400, 0x4FF), (0x410, 0x44F), (0x531, 0x587), (0x5D0, 0x5EA), (0x600, 0x6FF), (0x700, 0x74F),
    (0x780, 0x7BF), (0x900, 0x97F), (0x980, 0x9FF), (0xB80, 0xBFF), (0xC00, 0xC7F), (0xE00, 0xE7F),
    (0xE80, 0xEFF), (0xF00, 0xFFF), (0x1000, 0x109F), (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1200, 0x137F),
    (0x13A0, 0x13FF), (0x1780, 0x17FF), (0x1800, 0x18AF), (0x1C80, 0x1C8F), (0x1E00, 0x1EFF),
    (0x1F00, 0x1FFF), (0x2C00, 0x2C5F), (0x3040, 0x309F), (0x30A0, 0x30FF), (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF), (0xA640, 0xA69F), (0xA720, 0xA7FF), (0xAB70, 0xABBF), (0xAC00, 0xD7A3),
    (0xF900, 0xFAFF), (0xFB00, 0xFB4F), (0xFF00, 0xFFEF), (0x10400, 0x1044F), (0x105C0, 0x105FF),
    (0x10D40, 0x10D8F), (0x11F00, 0x11F5F), (0x16D40, 0x16D7F), (0x1D400, 0x1D7FF), (0x1E900, 0x1E95F),
    (0x20000, 0x2A6DF), (0x2EBF0, 0x2EE5D), (0x31350, 0x323AF),
]
DIGITS = ["0123456789", "٠١٢٣٤٥٦٧٨٩", "०१२३४५६७८९", "０１２３４５６７８９", "²³¹½¾ⅧⅻⅣ①②㊿", "𝟘𝟙𝟚𝟛", "\U00010D40\U00010D41\U000116D0"]
SPACES = [" ", " ", " ", "\t", "\n", "\n", "\r\n", "\r", "\v", "\f", "\u00a0", "\u0085", "\u1680", "\u180e",
          "\u2002", "\u2003", "\u2009", "\u200a", "\u200b", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\ufeff"]
EMOJI = ["🙂", "👨\u200d👩\u200d👧", "👩🏽\u200d💻", "🇨🇿", "🇯🇵", "1\ufe0f\u20e3", "❤\ufe0f\u200d🔥", "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
         "👍🏿", "☺\ufe0e", "🧑\u200d🚀", "\u200d", "\ufe0f"]
MARKS = [(0x300, 0x36F), (0x483, 0x489), (0x591, 0x5BD), (0x64B, 0x65F), (0x93C, 0x94D), (0x1AB0, 0x1AFF), (0x1DC0, 0x1DFF), (0x20D0, 0x20F0), (0x302A, 0x302F), (0x3099, 0x309A), (0xFE20, 0xFE2F)]
PUNCTUATION = list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") + ["—", "…", "«", "»", "“", "”", "、", "。", "」", "¿", "₿", "€", "→", "∑", "░", "🄰", "···", "===", "/*", "*/", "//", "://", "->", "::", "!=", "</", "/>"]
CODE = [
    "def f(x):\n\treturn x**2  # naïve\n", "for (int i = 0; i < n; ++i) {\r\n    sum += a[i];\r\n}\r\n", "};\n//\n///\n", "a = b;//c\n\n\n/x",
    "<a href=\"https://example.org/?q=%20x&y=1\">link</a>", "SELECT * FROM t WHERE x='it''s';", "\t\t\tif err != nil {\n\t\t\t\treturn nil, err\n\t\t\t}\n",
    "{\"key\": [1, 2.5e-10, null, \"\\u00e9\"]}", "0xDEADBEEF 1_000_000 3.14159", "#include <vector>\n\nnamespace a::b { }\n", "ďábelské 🙂 日本 👨\u200d👩\u200d👧",
    "foo.bar(baz)[0]->qux;\n/", "\n/\n//\r\n/", "if x:\n        pass\n    \n  \n", "  \n \r\n  x", "a\u0300\u0301b\u0302",
]


class Texts:
    """A deterministic stream of byte strings; `tokens` are added tokens to strew in."""

    def __init__(self, seed, tokens=()):
        self.rng = random.Random(seed)
        self.tokens = list(tokens)

    def character(self):
        r = self.rng
        while True:
            c = r.randrange(0x110000) if r.random() < 0.5 else r.randrange(0x3000)
            if not 0xD800 <= c <= 0xDFFF:
                return chr(c)

    def word(self):
        r = self.rng
        low, high = r.choice(SCRIPTS)
        text = "".join(chr(r.randint(low, high)) for _ in range(r.randint(1, 8)))
        kind = r.random()
        if kind < 0.15:
            text = text.upper()
        elif kind < 0.3:
            text = text.lower()
        elif kind < 0.4:
            text = text.title()
        return "".join(c for c in text if not 0xD800 <= ord(c) <= 0xDFFF)

    def english(self):
        r = self.rng
        word = r.choice(WORDS)
        kind = r.random()
        if kind < 0.1:
            word = word.capitalize()
        elif kind < 0.15:
            word = word.upper()
        return word

    def mark(self):
        return chr(self.rng.randint(*self.rng.choice(MARKS)))

    def fragment(self):
        r = self.rng
        kind = r.randrange(20)
        if kind < 6:
            return " " + self.english()
        if kind == 6:
            return self.english() + r.choice(APOSTROPHES) + r.choice(CONTRACTIONS)
        if kind == 7:
            return " ".join(self.word() for _ in range(r.randint(1, 4)))
        if kind == 8:
            return self.word() + r.choice(APOSTROPHES) + r.choice(CONTRACTIONS) + self.word()
        if kind == 9:
            digits = r.choice(DIGITS)
            return "".join(r.choice(digits) for _ in range(r.randint(1, 9)))
        if kind == 10:
            return "".join(r.choice(SPACES) for _ in range(r.randint(1, 6)))
        if kind == 11:
            return r.choice(SPACES) * r.choice([1, 2, 3, 17, 64, 300])
        if kind == 12:
            return r.choice(EMOJI) * r.choice([1, 1, 2])
        if kind == 13:
            return "".join(self.character() for _ in range(r.randint(1, 4)))
        if kind == 14:
            return self.word() + "".join(self.mark() for _ in range(r.choice([1, 2, 5])))
        if kind == 15:
            return r.choice(PUNCTUATION) * r.choice([1, 1, 2, 5])
        if kind == 16:
            return r.choice(CODE)
        if kind == 17:
            return "".join(chr(r.choice([*range(32), *range(127, 160)])) for _ in range(r.randint(1, 4)))
        if kind == 18 and self.tokens:
            token = r.choice(self.tokens)
            if r.random() < 0.3:  # almost a token
                cut = r.randint(0, len(token))
                token = token[:cut] + r.choice(["", " ", token, self.character()]) + token[cut:]
            return r.choice(["", "", " ", "  ", "\n", "é", "²"]) + token + r.choice(["", "", " ", "\t ", "_", "9", "\u0301"])
        return self.english().lower() + r.choice(PUNCTUATION)

    def text(self):
        r = self.rng
        text = "".join(self.fragment() for _ in range(r.choice([0, 1, 2, 3, 10, 60, 300]))).encode("utf-8", "replace")
        if r.random() < 0.25 and text:  # break the UTF-8
            text = bytearray(text)
            for _ in range(r.randint(1, 8)):
                at = r.randrange(len(text))
                action = r.randrange(3)
                if action == 0:
                    text[at] = r.randrange(256)
                elif action == 1:
                    del text[at]
                    if not text:
                        break
                else:
                    text[at:at] = bytes(r.choice([0x80, 0xBF, 0xC0, 0xC2, 0xE0, 0xE2, 0xED, 0xF0, 0xF4, 0xF5, 0xFF]) for _ in range(r.randint(1, 3)))
            text = bytes(text)
        return text

    def runs(self, size):
        """Long runs of one thing, each about `size` bytes."""
        units = [" ", "\n", "\r\n", "a", "A", "aB", "7", "-", "\t ", "é", "日", "\u0301", "🙂", "\u3000", "' ", "a'", "\x00"]
        for unit in units:
            unit = unit.encode()
            yield unit * (size // len(unit))
            yield unit * (size // len(unit)) + b"x"

    def stream(self, size):
        """Texts of about `size` bytes together."""
        total = 0
        while total < size:
            text = self.text()
            total += len(text) + 1
            yield text

    def ordinary(self, size):
        """Mixed text as people write it: mostly prose, some code, some other scripts."""
        r = self.rng
        parts = []
        total = 0
        while total < size:
            kind = r.random()
            if kind < 0.8:
                sentence = " ".join(self.english() for _ in range(r.randint(4, 16))) + r.choice([". ", ".\n", ", ", "? "])
            elif kind < 0.9:
                sentence = r.choice(CODE)
            else:
                sentence = " ".join(self.word() for _ in range(r.randint(2, 6))) + " "
            parts.append(sentence)
            total += len(sentence.encode())
        return "".join(parts).encode()


if __name__ == "__main__":  # tokenizer_texts.py MEGABYTES: ordinary text to standard output
    import sys

    sys.stdout.buffer.write(Texts(1).ordinary(int(float(sys.argv[1]) * 1e6)))

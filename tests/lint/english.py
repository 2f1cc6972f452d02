"""Words and sentence forms that readers of the field stumble over, in comments and guides, each with the term to use.

    tests/lint/english.py                the findings of files that have more of them than tests/lint/english.txt allows
    tests/lint/english.py PATH...        all findings below these files or folders
    tests/lint/english.py --count        findings by folder
    tests/lint/english.py --update       writes english.txt: the findings that each file may still have, 0 left out

A new file may have none. A sentence whose words are right in their place ends with `english: fine`.
"""
import collections
import io
import pathlib
import re
import subprocess
import sys
import tokenize

TOP = pathlib.Path(__file__).resolve().parents[2]
ALLOWED = TOP / "tests/lint/english.txt"
FINE = "english: fine"

# (pattern, what to write instead). A pattern is tried on sentences whose line breaks are spaces.
SENTENCES = [
    (r"^(Of|Nor|Else)\b", "a sentence with a subject and a verb"),
    (r"^As (?!a rule|a result|long|soon|in )", "a sentence with a subject and a verb"),
    (r"^The same (of|for|at|as|with|in)\b", "a sentence with a subject and a verb"),
    (r"^(What|Who|Whoever|Whatever)\b(?![^.]*\?)", "a noun: the message, the waiting rank, the caller"),
    (r"\b(who|whoever) (waits|asks|calls|reads|writes|sends|receives|gets|has|holds|uses|comes|opens|starts|knows|wants|owns|is|makes|runs)\b",
     "a noun: the waiting rank, the caller"),
    (r"\b(of|for|to|from|by|with|than|and|in|on|at|is|are|as) what (is|was|are|were|it|they|a|an|the|each|no|has|have|one|comes|goes|follows|does|did|will|would)\b",
     "a noun instead of `what ...`"),
]
TERMS = [
    (r"products? of (matrices|a matrix)", "GEMM, matmul"),
    (r"sums? of products?", "GEMM, dot product; accumulators"),
    (r"sums? of gradients", "reduced gradients, gradient reduction"),
    (r"added up over|add up over|adds up over", "all-reduced over, reduced over"),
    (r"handed round|hands? round", "broadcast, all-gather, ring step"),
    (r"ask(s|ed|ing)? (for )?(\w+ ){0,3}ahead|from afar", "prefetch, cache miss"),
    (r"turned (matrix|operand|weight|tensor|rows|columns)|lies? the other way", "transpose, transposed"),
    (r"\b(lie|lies|lay)\b|\bstands?\b(?! for)", "is stored, is laid out, is located"),
    (r"square of sums|panel of sums|strip of sums", "register tile, accumulator tile"),
    (r"on the calendar", "phases and their schedule"),
    (r"by turns|in turns", "alternately, round-robin"),
    (r"com(e|es|ing) again", "repeats, steady state"),
    (r"\bsight\b|blind to|blind (row|rank|token|query)", "attends to, masked"),
    (r"\b(no|has|have|enough|more|much|its|the|of) room\b", "workspace, scratch, capacity"),
    (r"(the )?last bits\b|to the (last )?bit\b", "rounding, ULP; bitwise identical"),
    (r"words? of (a|the|its) (plan|plans|DSL|line)", "function, keyword, option, argument"),
    (r"go(es)? on over (the )?end", "carried over, cross-step overlap"),
    (r"\b(tells?|told|hears?|heard|deaf|says?|said)\b", "report, print, log, state, receive"),
    (r"\b(wants?|wanted|knows|knew|meets?|met)\b", "need, request, have, detect, join"),
    (r"\bask(s|ed|ing)? for\b", "request; prefetch"),
    (r"\b(stays?|stayed|left out|leaves? out|leaving out)\b", "remain, persist; omit, skip"),
    (r"how many there may be|as many as there may be", "capacity, upper bound"),
    (r"\bas of now\b|\bthat of before\b|\bof before\b|\bof old\b", "previous, former"),
    (r"\bbring(s)? about\b", "cause, inject"),
    (r"\b(is|are|was|were) none of\b|\bno more than\b", "missing; at most"),
    (r"\bupper halves\b|\bupper and rest\b|\brest of a split\b", "hi, lo"),
    (r"\belsewhere (it|this|they|that|is|are|called)\b", "names in other frameworks"),
    (r"\bnobody\b|\bsomebody\b", "no rank, a user, another process"),
    (r"\b(its|their|the) likes?\b(?= (of|are|is))", "similar, such"),
    (r"\bthere and then\b|\bhere and there\b", "state the place"),
]
# In folders of GEMM kernels.
GEMM_FOLDERS = ("runtime/kernels/", "plugins/cuda/", "tools/bench/")
GEMM = (re.compile(r"(?<!dot )(?<!outer )\bproducts?\b", re.IGNORECASE), "GEMM, dot product (with `dot`), matmul")
PATTERNS = [(re.compile(p, 0 if p.startswith("^") else re.IGNORECASE), hint)
            for p, hint in [*SENTENCES, *((rf"\b(?:{p})", hint) for p, hint in TERMS)]]

C_LIKE = (".h", ".cc", ".cu", ".cuh", ".c", ".inc", ".js")
HASHES = (".cmake", ".sh", ".yaml", ".toml")
ABBREVIATION = re.compile(r"\b(e\.g|i\.e|etc|vs|cf|Fig|Sec)\.$")


def blocks_of_slashes(text, mark):
    """Returns [(line of its start, text)] of comments that begin with `mark`, adjacent lines joined."""
    found, begin, words = [], 0, []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        bare = re.sub(r'^#!.*|"(?:[^"\\]|\\.)*"', '""', line)
        at = bare.find(mark)
        alone = at >= 0 and bare[:at].strip() == ""
        if words and not alone:
            found.append((begin, "\n".join(words)))
            words = []
        if at < 0 or (mark == "//" and at > 0 and bare[at - 1] == ":"):
            continue
        comment = bare[at + len(mark):].lstrip(mark[0]).strip()
        if alone:
            begin, words = (begin if words else number), [*words, comment]
        else:
            found.append((number, comment))
    return found


def blocks_of_stars(text):
    return [(text.count("\n", 0, found.start(1)) + 1, re.sub(r"\n[ \t]*\*? ?", "\n", found[1]))
            for found in re.finditer(r"(?:^|\s)/\*(.*?)\*/", text, re.DOTALL)]


def blocks_of_python(text):
    found = blocks_of_slashes(text, "#")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.STRING and token.string.startswith(('"""', "'''")):
            found.append((token.start[0], token.string.strip("\"'")))
    return found


def blocks_of_markdown(text):
    found, begin, words, fenced = [], 0, [], False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.lstrip().startswith("```"):
            fenced, line = not fenced, ""
        prose = "" if fenced else re.sub(r"`[^`]*`", "`x`", line)
        if prose.startswith("|"):  # each cell is a text of its own
            found += [(number, cell.strip()) for cell in prose.strip("|").split("|")]
            prose = ""
        starts = re.match(r"\s*([-*#]|\d+\.)\s", prose) is not None
        if words and (prose.strip() == "" or starts):
            found.append((begin, "\n".join(words)))
            words = []
        if prose.strip():
            begin, words = (begin if words else number), [*words, prose.strip(" -*#")]
    return found


def blocks(path):
    text = path.read_text(errors="replace")
    if path.suffix in C_LIKE:
        return blocks_of_slashes(text, "//") + blocks_of_stars(text)
    if path.suffix == ".css":
        return blocks_of_stars(text)
    if path.suffix == ".py" or re.match("#!.*python", text):
        return blocks_of_python(text)
    if path.suffix == ".lua":
        return blocks_of_slashes(text, "--")
    if path.suffix == ".md":
        return blocks_of_markdown(text)
    if path.name == "CMakeLists.txt" or path.suffix in HASHES or (path.suffix == "" and text.startswith("#")):
        return blocks_of_slashes(text, "#")
    return []


def sentences(block):
    parts, begin = [], 0
    text = " ".join(block.split())
    for end in re.finditer(rf"(?:[.;:!?]|{FINE}) (?=[A-Z`(])", text):
        if not ABBREVIATION.search(text[begin:end.end() - 1]):
            parts.append(text[begin:end.end() - 1])
            begin = end.end()
    return [*parts, text[begin:]]


def findings(path):
    """Returns [(line of the block, the words, what to write instead)], at most one per pattern and sentence."""
    found = []
    name = path.relative_to(TOP).as_posix()
    patterns = [*PATTERNS, GEMM] if name.startswith(GEMM_FOLDERS) else PATTERNS
    for line, block in blocks(path):
        for sentence in (each for each in sentences(block) if FINE not in each):
            found += [(line, match[0], hint) for pattern, hint in patterns if (match := pattern.search(sentence))]
    return found


def files(below):
    names = subprocess.run(["git", "ls-files", "--", *below], cwd=TOP, capture_output=True, text=True, check=True).stdout.split()
    return [name for name in names if name not in ("tests/lint/english.py", "tests/lint/english_test.py") and (TOP / name).is_file()]


def allowed():
    if not ALLOWED.exists():
        return {}
    rows = (line.split() for line in ALLOWED.read_text().splitlines() if line and not line.startswith("#"))
    return {name: int(count) for count, name in rows}


def main(arguments):
    by_file = {name: findings(TOP / name) for name in files([a for a in arguments if not a.startswith("--")])}
    if not by_file:
        sys.exit(f"git tracks no file below {' '.join(arguments)}")
    if arguments == ["--update"]:
        rows = [f"{len(found)} {name}" for name, found in sorted(by_file.items()) if found]
        ALLOWED.write_text("# Findings of english.py that a file may still have; the numbers only fall.\n" + "".join(f"{r}\n" for r in rows))
        return 0
    if "--count" in arguments:
        counts = collections.Counter()
        for name, found in by_file.items():
            counts["/".join(name.split("/")[:2])] += len(found)
        for folder, count in counts.most_common():
            print(f"{count:6} {folder}")
        print(f"{sum(counts.values()):6} in all")
        return 0
    limits = {} if arguments else allowed()
    bad = {name: found for name, found in by_file.items() if len(found) > limits.get(name, 0)}
    for name, found in bad.items():
        for line, words, hint in found:
            print(f"{name}:{line}: '{words}': write {hint}")
    if bad and not arguments:
        print("Only text that is new counts, but all findings of its file are listed (tests/lint/english.txt).")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

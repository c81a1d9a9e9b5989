"""Build the site: ``python -m website``. It prints what was made, and every problem."""

import os
import shutil
import subprocess
import sys

from sphinx.cmd.build import build_main

from website.check import problems
from website.gather import gather
from website.pages import ROOT

BUILD = ROOT / "build"
# What is searched: not the source files, and not the pages of the explorer.
SEARCHED = "{*,api/*,benchmarks/**/*,docs/*,minibert/**/*,notebooks/*,tests/*}.html"


def main() -> int:
    """Gather, build, index, check; the exit code says whether there are problems."""
    sources, extra, site = BUILD / "pages", BUILD / "extra", BUILD / "site"
    shutil.rmtree(site, ignore_errors=True)
    gather(sources, extra)
    os.environ["SITE_EXTRA"] = str(extra)
    configuration = str(ROOT / "website")
    options = [
        "-b",
        "html",
        "-c",
        configuration,
        "-d",
        str(BUILD / "doctrees"),
        "-E",
        "-q",
        "-W",
        "--keep-going",
    ]
    if failed := build_main([*options, str(sources), str(site)]):
        return failed
    index = [
        "--site",
        str(site),
        "--root-selector",
        "article",
        "--glob",
        SEARCHED,
        "--exclude-selectors",
        ".headerlink,annotation",
        "--quiet",
    ]
    subprocess.run([sys.executable, "-m", "pagefind", *index], check=True)
    counts, found = problems(site)
    print(*found, sep="\n")
    times = os.times()
    seconds = times.user + times.system + times.children_user + times.children_system
    print(f"{site.relative_to(ROOT)}: {counts}; {len(found)} problems; {seconds:.0f} seconds of CPU")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

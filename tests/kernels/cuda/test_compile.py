"""The report on compiled kernels; the compilation itself is part of CI, where a compiler is."""

from minibert.kernels.cuda import compile as report
from minibert.kernels.cuda.launch import FOLDER

MESSAGES = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'sum' for 'sm_80'
ptxas info    : Function properties for sum
    16 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 25 registers, used 1 barriers, 128 bytes smem, 360 bytes cmem[0]
ptxas info    : Compiling entry function 'scale_rows' for 'sm_80'
ptxas info    : Function properties for scale_rows
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 17 registers, used 0 barriers, 388 bytes cmem[0]
"""


def test_messages_of_ptxas_are_read():
    assert report.read_messages(MESSAGES) == [
        report.Kernel("sum", registers=25, spilled=12, shared=128),
        report.Kernel("scale_rows", registers=17, spilled=0, shared=0),
    ]


def test_no_compiler_is_no_failure(monkeypatch, capsys):
    monkeypatch.setattr(report, "find_compilers", list)
    assert report.main() == 0
    assert "not compiled" in capsys.readouterr().out


def test_nvrtc_that_is_nowhere_is_not_loaded(monkeypatch):
    """On Linux the library "None" would be the program itself."""
    monkeypatch.setattr(report.metadata, "distributions", list)
    monkeypatch.setattr(report.ctypes.util, "find_library", lambda name: None)
    assert report._load_nvrtc() is None


def test_every_source_is_compiled_for_every_dtype_and_architecture(monkeypatch, capsys):
    asked = []

    def compiler(*job):
        asked.append(job)
        return True, MESSAGES

    monkeypatch.setattr(report, "find_compilers", lambda: [("a compiler", compiler)])
    assert report.main() == 0
    sources = {path.stem for path in FOLDER.glob("*.cu")}
    dtypes = {source: 1 if source in report.FLOAT32_ONLY else 3 for source in sources}
    assert len(set(asked)) == len(asked) == 2 * sum(dtypes.values())
    assert "scale_rows                 float16  sm_90         17        0       0" in capsys.readouterr().out


def test_a_source_that_does_not_compile_is_a_failure(monkeypatch, capsys):
    def compiler(source, dtype, architecture):
        return source != "adamw", "error: expected a ';'" if source == "adamw" else MESSAGES

    monkeypatch.setattr(report, "find_compilers", lambda: [("a compiler", compiler)])
    assert report.main() == 1
    printed = capsys.readouterr().out
    assert "adamw.cu does not compile for float16, sm_80:\nerror: expected a ';'" in printed
    assert "6 failed" in printed


def test_a_compiler_that_reports_nothing_is_a_failure(monkeypatch):
    monkeypatch.setattr(report, "find_compilers", lambda: [("a compiler", lambda *job: (True, ""))])
    assert report.main() == 1


def test_every_compiler_has_its_say(monkeypatch, capsys):
    compilers = [("nvcc 1", lambda *job: (True, MESSAGES)), ("NVRTC 2", lambda *job: (False, "no"))]
    monkeypatch.setattr(report, "find_compilers", lambda: compilers)
    assert report.main() == 1
    printed = capsys.readouterr().out
    assert "compiled by nvcc 1" in printed and "compiled by NVRTC 2" in printed
    monkeypatch.setattr(report, "find_compilers", lambda: compilers[:1])
    assert report.main() == 0
    assert "not compiled with NVRTC, which is not here: pip install" in capsys.readouterr().out


class FakeNvrtc:
    """NVRTC's functions, which compile nothing but note with which options they were asked to."""

    def __init__(self):
        self.options = []

    def nvrtcCreateProgram(self, program, code, name, *headers):
        assert b"__global__" in code and name == b"adamw.cu"
        return 0

    def nvrtcCompileProgram(self, program, count, words):
        self.options = words[:count]
        return 0

    def nvrtcGetProgramLogSize(self, program, size):
        size._obj.value = len(MESSAGES) + 1

    def nvrtcGetProgramLog(self, program, log):
        log.value = MESSAGES.encode()

    def nvrtcDestroyProgram(self, program):
        pass


def test_nvrtc_is_told_what_cupy_tells_it():
    library = FakeNvrtc()
    assert report._compile_by_nvrtc(library, "adamw", "float16", "sm_90") == (True, MESSAGES)
    assert {b"-arch=sm_90", b"-ftz=true", b"-std=c++17", b"-DSTORAGE=float16"} <= set(library.options)

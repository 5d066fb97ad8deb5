"""Imports of pynvml: in one module only, without expensive modules, and with the names in use."""

import re
import sys

import pynvml
import pytest

from tests.support.paths import ROOT


def test_one_file_imports_the_binding():
    imports = re.compile(r"^\s*(import|from) pynvml\b", re.MULTILINE)
    files = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "webhook").rglob("*.py")
        if imports.search(path.read_text(encoding="utf-8"))
    ]
    assert files == ["webhook/adapters/nvml.py"]


def test_it_needs_the_standard_library_and_the_binding_alone(stub):
    def scenario(s):
        loaded = {name.partition(".")[0] for name in sys.modules}
        return sorted(loaded - sys.stdlib_module_names - {"__main__", "scenario"})

    assert stub.run(scenario) == ["pynvml", "webhook"]


def test_nothing_of_this_costs_a_server_or_a_logger(stub):
    def scenario(s):
        return sorted({"logging", "http", "ssl", "socket", "asyncio", "argparse"} & {*sys.modules})

    assert stub.run(scenario) == []


def test_what_we_use_of_the_binding_beside_its_functions_exists():
    assert pynvml.nvmlMemory_v2 == 0x02000028
    fields = [name for name, _ in pynvml.c_nvmlProcessInfo_v2_t._fields_]
    assert fields[:2] == ["pid", "usedGpuMemory"]
    with pytest.raises(pynvml.NVMLError) as raised:
        pynvml._nvmlGetFunctionPointer("nvmlNothing")  # no library is loaded in this process
    assert raised.value.value == pynvml.NVML_ERROR_UNINITIALIZED

"""The script that starts vLLM with patches (standard library only), and the names that the host uses of it.

Begin at the end of launch.py: `launch()` shows the whole start. The host imports from here, never from launch.py, which
is copied into stacks unchanged.
"""

from gemmaspec.core.launcher.launch import ATTEST as ATTEST_FILES
from gemmaspec.core.launcher.launch import EDGE as EDGE_MARK
from gemmaspec.core.launcher.launch import (
    FILE_LIMIT,
    FITS,
    LEFT_OUT,
    FileEdit,
    FileResult,
    Found,
    Hunk,
    Known,
    Measured,
    Patch,
    PatchResult,
    Plan,
    Read,
    Requirement,
    Rule,
    Source,
    Surroundings,
    Variant,
    build_overlay,
    candidates,
    check_path,
    decide_file,
    decide_places,
    decide_plan,
    defined_in,
    definitions,
    enclosing,
    find_hunk,
    function_digest,
    is_text,
    parse_plan,
    plan_digest,
    sha256,
    source_of,
    stated_version,
    tree_digest,
    unmeasured,
    vllm_version,
)
from gemmaspec.core.launcher.launch import MARKER as OVERLAY_MARKER
from gemmaspec.core.launcher.launch import NUMBER as VERSION_NUMBER
from gemmaspec.core.launcher.launch import ORIGINS as ORIGINS_FILE
from gemmaspec.core.launcher.launch import RANK_FACTS as RANK_FACTS_FILE
from gemmaspec.core.launcher.launch import RELEASE as PUBLISHED_RELEASE
from gemmaspec.core.launcher.launch import UNREADABLE as NOT_PYTHON
from gemmaspec.core.launcher.launch import build as decode
from gemmaspec.core.launcher.launch import check as ensure
from gemmaspec.core.launcher.launch import contains as range_contains
from gemmaspec.core.launcher.launch import first_line as first_line_of
from gemmaspec.core.launcher.launch import likeness as similarity
from gemmaspec.core.launcher.launch import quietly as without_warnings
from gemmaspec.core.launcher.launch import read_from as reader_of
from gemmaspec.core.launcher.launch import release as release_key
from gemmaspec.core.launcher.launch import remove as delete
from gemmaspec.core.launcher.origins import module_of as module_of

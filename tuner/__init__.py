"""The farm: searches for the best plan of a model at every level of contention.

summary = tuner.tune("model.onnx", machine="edge", out="RUN", candidates=384)
run = tuner.open_view("RUN")                # its log and champions as data frames
tuner.best_so_far(run)                      # a figure
result = tuner.Search("model.onnx", machine="edge", candidates=64).run()      # one search, in this process, for research
"""

from typing import TYPE_CHECKING

from simulator.npu.lazily import lazy_attributes

if TYPE_CHECKING:
    from tuner.api import tune
    from tuner.in_process import Search, SearchResult
    from tuner.report.search_figures import best_so_far
    from tuner.report.view import RunView, open_view
    from tuner.summary import Summary
    from tuner.tune_request import Snapshot, TuneRequest
    from tuner.zoo.load import load_network

__all__ = ["RunView", "Search", "SearchResult", "Snapshot", "Summary", "TuneRequest", "best_so_far", "load_network", "open_view", "tune"]

if not TYPE_CHECKING:  # hidden from type checkers, for which any name would then exist
    __getattr__ = lazy_attributes(
        __name__,
        {
            "RunView": "tuner.report.view",
            "Search": "tuner.in_process",
            "SearchResult": "tuner.in_process",
            "Snapshot": "tuner.tune_request",
            "Summary": "tuner.summary",
            "TuneRequest": "tuner.tune_request",
            "best_so_far": "tuner.report.search_figures",
            "load_network": "tuner.zoo.load",
            "open_view": "tuner.report.view",
            "tune": "tuner.api",
        },
    )

from mnagt.explain.config import ExplainConfig as ExplainConfig
from mnagt.explain.explanation import Explanation as Explanation
from mnagt.explain.explanation import check_by_deletion as check_by_deletion
from mnagt.explain.explanation import explain as explain
from mnagt.explain.kernel_statistics import compute_kernel_statistics as compute_kernel_statistics
from mnagt.explain.report import explain_to as explain_to

__all__ = ["ExplainConfig", "Explanation", "check_by_deletion", "compute_kernel_statistics", "explain", "explain_to"]

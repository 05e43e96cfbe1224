"""Ways to forget, one file each, behind one contract."""

from pour.methods.contract import Method, MethodInfo, get_method, list_methods, register
from pour.methods.iterative import IterativeMethod
from pour.methods.masked_head import MaskedHead
from pour.methods.pour_d import PourD
from pour.methods.pour_p import PourP
from pour.methods.request import AccessError, ForgetRequest, Granted, Images
from pour.methods.unlearning import make_method, unlearn

__all__ = [
    "AccessError",
    "ForgetRequest",
    "Granted",
    "Images",
    "IterativeMethod",
    "MaskedHead",
    "Method",
    "MethodInfo",
    "PourD",
    "PourP",
    "get_method",
    "list_methods",
    "make_method",
    "register",
    "unlearn",
]

"""Requests, the contract of every method, and the call that runs one."""

from pour.unlearning.access import Images
from pour.unlearning.contract import Method, option
from pour.unlearning.forget_only import ForgetOnlyMethod
from pour.unlearning.iterative import IterativeMethod
from pour.unlearning.registry import MethodInfo, get_method, list_methods, register
from pour.unlearning.request import AccessError, ForgetRequest, Granted
from pour.unlearning.unlearn import make_method, request_of

__all__ = [
    "AccessError",
    "ForgetOnlyMethod",
    "ForgetRequest",
    "Granted",
    "Images",
    "IterativeMethod",
    "Method",
    "MethodInfo",
    "get_method",
    "list_methods",
    "make_method",
    "option",
    "register",
    "request_of",
]

"""Ways to forget, one file each, behind one contract."""

from pour.methods.bad_teacher import BadTeacher
from pour.methods.boundary_expand import BoundaryExpand
from pour.methods.boundary_shrink import BoundaryShrink
from pour.methods.contract import Method, MethodInfo, get_method, list_methods, register
from pour.methods.delete import Delete
from pour.methods.duck import Duck
from pour.methods.esc import Esc
from pour.methods.fcs import Fcs
from pour.methods.finetune import Finetune
from pour.methods.forget_only import ForgetOnlyMethod
from pour.methods.gradient_ascent import GradientAscent
from pour.methods.images import Images
from pour.methods.iterative import IterativeMethod
from pour.methods.l1_sparse import L1Sparse
from pour.methods.leace import Leace, LeaceOrth
from pour.methods.masked_head import MaskedHead
from pour.methods.neggrad_plus import NegGradPlus
from pour.methods.pour_a import PourA
from pour.methods.pour_d import PourD
from pour.methods.pour_p import PourP
from pour.methods.projun import ProjUn
from pour.methods.random_direction import RandomDirection
from pour.methods.random_label import RandomLabel
from pour.methods.request import AccessError, ForgetRequest, Granted
from pour.methods.retrain import Retrain
from pour.methods.salun import SalUn
from pour.methods.scrub import Scrub
from pour.methods.ssd import Ssd
from pour.methods.sure import Sure
from pour.methods.unlearning import make_method, request_of, unlearn
from pour.methods.unsir import Unsir

__all__ = [
    "AccessError",
    "BadTeacher",
    "BoundaryExpand",
    "BoundaryShrink",
    "Delete",
    "Duck",
    "Esc",
    "Fcs",
    "Finetune",
    "ForgetOnlyMethod",
    "ForgetRequest",
    "GradientAscent",
    "Granted",
    "Images",
    "IterativeMethod",
    "L1Sparse",
    "Leace",
    "LeaceOrth",
    "MaskedHead",
    "Method",
    "MethodInfo",
    "NegGradPlus",
    "PourA",
    "PourD",
    "PourP",
    "ProjUn",
    "RandomDirection",
    "RandomLabel",
    "Retrain",
    "SalUn",
    "Scrub",
    "Ssd",
    "Sure",
    "Unsir",
    "get_method",
    "list_methods",
    "make_method",
    "register",
    "request_of",
    "unlearn",
]

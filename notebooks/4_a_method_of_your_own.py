# %% [markdown]
# # A method of your own
#
# A method is a class with a name, the data that it needs, and options. This notebook writes one and compares it with
# the methods of pour.

# %%
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pour
from pour.models import scores_of, to_unit
from pour.unlearning import IterativeMethod, option, register

torch.set_num_threads(1)


# %% [markdown]
# ## The method
#
# It trains images of the class towards equal scores for all classes. `IterativeMethod` brings the options of training:
# rate, epochs, batch size and others.


# %%
@register
@dataclass(kw_only=True)
class Flatten(IterativeMethod):
    """Train forget images towards equal scores for all classes."""

    name: ClassVar[str] = "flatten"
    paper: ClassVar[str] = "an example"
    needs: ClassVar[tuple[str, ...]] = ("forget",)
    epochs: int | None = 5
    sharpness: float = option(1.0, "Factor on the scores before the softmax.", above=0)

    def __call__(self, model, request, run):
        def objective(student, images, labels):
            return -F.log_softmax(self.sharpness * scores_of(student(to_unit(images))), dim=1).mean()

        batches = request.forget.training(run, batch_size=self.batch_size, augment=self.augment)
        self.train(model, batches, objective, run)
        return model


# %% [markdown]
# ## A network and its data

# %%
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
labels = torch.tensor(digits.target)
train, test = TensorDataset(images[:1200], labels[:1200]), TensorDataset(images[1200:], labels[1200:])


def trained(data, seed):
    torch.manual_seed(seed)
    network = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    for _ in range(25):
        for x, y in DataLoader(data, batch_size=64, shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(network(x), y).backward()
            optimizer.step()
    return network.eval()


def without(digit):
    keep = labels[:1200] != digit
    return TensorDataset(images[:1200][keep], labels[:1200][keep])


original = trained(train, seed=0)
retrained = [trained(without(3), seed) for seed in (1, 2)]
threes = DataLoader([pair for pair in train if pair[1] == 3], batch_size=32)

# %% [markdown]
# ## Compare
#
# Each student is audited against the same retrained networks. `value` reads a metric of the report.

# %%
rows = []
calls = {"flatten": {"lr": 1e-4}, "flatten, higher rate": {"lr": 1e-3}, "delete": {}, "pour-a": {}}
for name, options in calls.items():
    method = name.partition(",")[0]
    student = pour.unlearn(original, classes=[3], forget=threes, method=method, device="cpu", progress=False, **options)
    report = pour.audit(
        original=original,
        unlearned=student,
        retrained=retrained,
        data={"train": train, "test": test},
        classes=[3],
        device="cpu",
        progress=False,
    )
    rows.append((name, *(report.value(metric) for metric in ("acc_r", "acc_f", "rus_r", "probe_linear"))))

print(f"{'method':22} {'Acc_r':>7} {'Acc_f':>7} {'RUS(r)':>7} {'probe':>7}")
for name, acc_r, acc_f, rus_r, probe in rows:
    print(f"{name:22} {acc_r:7.1%} {acc_f:7.1%} {rus_r:7.2f} {probe:7.1%}")

# %% [markdown]
# A higher rate destroys the network: the audit shows it in Acc_r. `pour tune` searches a rate fairly.
#
# The method is also on the command line, once a package names it as an entry point:
#
# ```
# pour unlearn original.safetensors --method flatten --sharpness 2 --forget 3 --data digits --out student.safetensors
# pour bench digits --methods flatten --methods pour-a --out runs/flatten
# ```

# %%
print([info.name for info in pour.list_methods() if info.name.startswith("f")])

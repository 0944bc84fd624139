"""MLServer around the ONNX export of a model: what ``serving_rates.py`` compares the service with.

The same reader of SMILES and the same file; HTTP, the protocol and adaptive batching are MLServer's. In
``model-settings.json``, ``parameters.uri`` is the export and ``parameters.extra.folder`` the folder of its model.
"""

import asyncio

from mlserver import MLModel  # type: ignore[import-not-found]
from mlserver.codecs import NumpyCodec, StringCodec  # type: ignore[import-not-found]
from mlserver.types import InferenceRequest, InferenceResponse  # type: ignore[import-not-found]


class OnnxMolecules(MLModel):
    """SMILES to probabilities."""

    async def load(self) -> bool:
        """Read the model."""
        import torch

        from mnagt.inference.export import OnnxModel
        from mnagt.inference.model_folder import load_model

        torch.set_num_threads(1)
        parameters = self.settings.parameters
        self.trained = load_model(parameters.extra["folder"])
        self.model = OnnxModel(parameters.uri, self.trained)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """The probabilities for all molecules of a request, or of a batch of them."""
        smiles = StringCodec.decode_input(payload.inputs[0])
        probabilities = await asyncio.to_thread(self._compute, smiles)
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("p", probabilities)])

    def _compute(self, smiles: list[str]):
        import torch

        from mnagt.data.readers.smiles import read_smiles
        from mnagt.inference.outputs import compute_outputs

        graphs = read_smiles(smiles).graphs
        return (
            compute_outputs(self.model, graphs, torch.arange(len(graphs)), batch_size=len(graphs)).softmax(-1).numpy()
        )

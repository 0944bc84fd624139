"""Names of the data sets of the TU collection and of OGB that have no ``Source`` of their own."""

_PLAIN = """
AIDS alchemy_full aspirin benzene BZR BZR_MD COX2 COX2_MD DHFR DHFR_MD ER_MD ethanol FRANKENSTEIN malonaldehyde MUTAG
Mutagenicity naphthalene NCI1 NCI109 PTC_FM PTC_FR PTC_MM PTC_MR QM9 salicylic_acid toluene uracil ZINC_full ZINC_train
ZINC_val ZINC_test DD ENZYMES KKI OHSU Peking_1 PROTEINS PROTEINS_full COIL-DEL COIL-RAG Cuneiform Fingerprint
FIRSTMM_DB Letter-high Letter-low Letter-med MSRC_9 MSRC_21 MSRC_21C COLLAB DBLP_v1 deezer_ego_nets github_stargazers
IMDB-BINARY IMDB-MULTI reddit_threads REDDIT-BINARY REDDIT-MULTI-5K REDDIT-MULTI-12K twitch_egos
TWITTER-Real-Graph-Partial COLORS-3 SYNTHETIC SYNTHETICnew Synthie TRIANGLES
"""
_TEMPORAL = "dblp facebook highschool infectious mit tumblr"
_CELLS = "MCF-7 MOLT-4 NCI-H23 OVCAR-8 P388 PC-3 SF-295 SN12C SW-620 UACC257 Yeast"
_TOX21 = "AhR AR AR-LBD ARE aromatase ATAD5 ER ER_LBD HSE MMP p53 PPAR-gamma"

TU_NAMES = frozenset(
    [
        *_PLAIN.split(),
        *(f"{each}_ct{i}" for each in _TEMPORAL.split() for i in (1, 2)),
        *(f"{each}{hydrogens}" for each in _CELLS.split() for hydrogens in ("", "H")),
        *(f"Tox21_{each}_{part}" for each in _TOX21.split() for part in ("training", "testing", "evaluation")),
    ]
)
"""Each is a zip of its name at the collection's site."""

OGB_ARCHIVES = {"ogbg-molchembl": "csv_mol_download/chembl.zip"}
"""Those of OGB that have no ``Source``, and their zips at OGB's site."""
OGB_UNREADABLE = {"ogbg-ppa": "its nodes have no columns and its edges hold numbers, which the reader does not know"}

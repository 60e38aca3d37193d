"""TopSpin's former name; everything is in `shoal.compat.topspin`."""

# ruff: noqa: F401
# Scripts take all of these from here, with `from palframe import *`.
import abc
import bisect
import collections
import copy
import csv
import datetime
import functools
import glob
import heapq
import itertools
import logging
import math
import multiprocessing as mp
import operator
import optparse
import os
import pickle
import pprint
import queue
import random
import re
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import typing
import unicodedata
from collections import Counter, defaultdict, namedtuple
from enum import Enum
from operator import attrgetter, itemgetter, methodcaller
from optparse import OptionParser

import numpy as np
import psutil

from shoal import __version__

version = __version__

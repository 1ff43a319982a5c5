from .folders import gather as gather
from .page import Report as Report

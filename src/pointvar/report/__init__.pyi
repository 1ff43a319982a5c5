from .page import Report as Report
from .sources import gather as gather

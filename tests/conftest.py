from hypothesis import HealthCheck, settings

# A loaded machine is no defect: how long an example took says nothing about what it found.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

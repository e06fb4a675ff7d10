"""`gantry up`: Postgres, name servers, brokers, gateways and the scheduler as one supervised stack."""

"""MLflow's REST API inside a job: what scripts log with MLflow's client becomes metrics and parameters of the job."""

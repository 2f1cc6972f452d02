-- prun check PLAN
return prun.plan { model = prun.models.gpt {} }

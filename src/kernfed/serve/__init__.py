"""The gateway: an HTTP service in front of a model, with a page. Needs the extra ``[serve]``.

``kernfed serve model.kfd`` starts it; ``kernfed.serve.app.make_app`` is the application for a server of your own.
"""

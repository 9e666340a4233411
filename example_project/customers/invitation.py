"""Opens the accounts for ``manage.py run`` and says what can be tried with a key."""

import json
from string import Template

from billing.accounts import open_account, queue_of, signing_secrets
from django.conf import settings

from customers.client import Client
from customers.visit import CUSTOMERS
from customers.visits import read_queue, server_address

TEXT = Template(r"""
  API     ${api}/docs   a page to try it; the OpenAPI document is ${api}/schema
  Key     ${key}   of the customer ${name}
          keys.json has the keys of all three

  The server of ${name} is simulated. It refuses an invoice without an amount. Ask for an e-mail,
  schedule a callback, read why it failed, replay it corrected, and see what arrived:

    API=${api} KEY=${key}
    send() { curl -s "$$@" -H "Authorization: Bearer $$KEY" -H Content-Type:application/json; }

    send $$API/notification-settings -d '{"name": "ops", "on_dead_letter": true,
      "delivery_type": "EMAIL", "delivery_config": {"to": ["${mail}"]}}'
    send $$API/tasks -d '{"target_type": "HTTP_CALLBACK", "max_attempts": 1,
      "target_config": {"url": "${url}/check", "body": {"invoice": 7}}}'
    TASK=                                                # the task_id of the answer
    send $$API/tasks/$$TASK                                # status and last_error
    send $$API/tasks/$$TASK/deliveries                     # what the server answered
    send $$API/tasks/$$TASK/replay -d '{"reason": "the amount was missing", "target_config":
      {"url": "${url}/check", "body": {"invoice": 7, "amount": 4900}}}'
    curl ${url}                # what arrived, with the check of the signature

  The last part of the URL chooses how the server behaves: accept slow recover check fail close
  redirect hang stall flood drip. E-mails are files in the folder mails.

""")


def open_accounts(api: str) -> str:
    """Open the accounts of all customers; return the text for the first one.

    ``api``: the address of the API. Every call creates new keys.
    """
    keys = {customer.slug: open_account(customer.slug, customer.name).key for customer in CUSTOMERS}
    (settings.FOLDER / "keys.json").write_text(json.dumps(keys))
    for customer in CUSTOMERS:
        read_queue(queue_of(customer.slug))
        url = f"{server_address()}/{customer.slug}"
        Client(server_address()).put(f"/{customer.slug}", signing_secrets(customer.slug, url))
    first = CUSTOMERS[0]
    return TEXT.substitute(
        api=api,
        key=keys[first.slug],
        name=first.name,
        mail=first.mailbox,
        url=f"{server_address()}/{first.slug}",
    )

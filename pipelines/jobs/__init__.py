"""The work behind the larger commands; the declarations beside this folder import it lazily."""
